"""Turns of jobs for which the caches have no room beside those that came before wait, each for a while."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from lone_scheduler import LoneScheduler
from steered_scheduler import SEARCH, make_patient, run_until_idle, tokens_of
from tracked_requests import ASKED, Tracked
from waiting_requests import make_waiting

from agentcache.engine.constants import ROLES_ARGUMENT, TOOLS_DECLARED_ARGUMENT
from agentcache.engine.order.load_control import LONGEST_ROOM_S

# Longer than the patience of a turn, shorter than it waits for room.
OUT_OF_PATIENCE_S = 16.0


def make_full(*jobs: str) -> Tracked:
    """These jobs wait for their tools, and there is room for as many."""
    tracked = make_waiting(pinned=0)
    for name in jobs:
        tracked.turn(f"{name} first", ASKED, session=name, calls=(SEARCH,))
    give_room(tracked, len(jobs))
    return tracked


def give_room(tracked: Tracked, jobs: int) -> None:
    """From the next step on there is room for so many jobs."""
    tracked.places = jobs
    tracked.tracker.step()


def test_a_new_job_waits_for_room() -> None:
    tracked = make_full("a")
    request = tracked.ask("new", ASKED, session="new")
    tracked.clock.now_s += OUT_OF_PATIENCE_S
    assert tracked.tracker.find_wait(request, available=100) == "new job", "it is out of patience"
    give_room(tracked, 2)
    assert not tracked.tracker.find_wait(request, available=100)


def test_it_waits_for_a_while_at_each_turn() -> None:
    tracked = make_full("a")
    tracked.ask("runs", [*ASKED, 5], session="a")
    history = ASKED
    for turn in range(3):
        request = tracked.ask(f"{turn}", history, session="new", calls=(SEARCH,))
        tracked.clock.now_s += LONGEST_ROOM_S - 1.0
        tracked.tracker.step()
        assert tracked.tracker.find_wait(request, available=100) == "new job"
        tracked.clock.now_s += 1.0
        assert not tracked.tracker.find_wait(request, available=100)
        tracked.admit(request)
        history = [*tracked.reply(request)[1], turn]


@pytest.mark.parametrize(("refills", "waits"), [(1.3, True), (1.5, False)])
def test_it_does_not_wait_where_the_caches_hold_few_jobs(refills: float, waits: bool) -> None:
    """Computing the old jobs' contexts again takes less time than their tools do."""
    tracked = make_full("a")
    tracked.refills = refills
    tracked.tracker.step()
    request = tracked.ask("new", ASKED, session="new")
    assert tracked.tracker.find_wait(request, available=100) == ("new job" if waits else None)


def test_the_oldest_jobs_go_on() -> None:
    tracked = make_full("a", "b", "c")
    give_room(tracked, 2)
    waits = {name: tracked.ask(name, [*ASKED, 5], session=name) for name in ("c", "b", "a")}
    found = {name: tracked.tracker.find_wait(request, available=100) for name, request in waits.items()}
    assert found == {"a": None, "b": None, "c": "new job"}
    give_room(tracked, 3)
    assert not tracked.tracker.find_wait(waits["c"], available=100)


@pytest.mark.parametrize("more", [0, 1])
def test_one_that_has_taken_its_room_goes_on(more: int) -> None:
    """It would lose its context while it waits."""
    tracked = make_full("a", "b")
    tracked.places = 1
    tracked.job_tokens = len(ASKED) + 1 + more
    tracked.tracker.step()
    request = tracked.ask("again", [*ASKED, 5], session="b")
    assert tracked.tracker.find_wait(request, available=100) == ("new job" if more else None)


@pytest.mark.parametrize("marks", [{}, {TOOLS_DECLARED_ARGUMENT: ["search"]}])
def test_a_chat_without_tools_does_not_wait(marks: Mapping[str, Any]) -> None:
    """What the API server tells."""
    tracked = make_full()
    chat = tracked.ask("chat", ASKED, session="chat", marks={ROLES_ARGUMENT: "u", **marks})
    assert tracked.tracker.find_wait(chat, available=100) == ("new job" if marks else None)


def make_crowded(model_path: str, policy: str, *sizes: int) -> LoneScheduler:
    """Jobs with prompts of so many tokens wait for their tools, there is room for 704, and another request runs.

    Time stands still in their turns. The tiny model computes 704 tokens in less than a second, and no job waits for
    room where that takes less time than a turn.
    """
    lone = make_patient(model_path, policy, blocks=44, engine={"max_num_seqs": 8}, segments={"enabled": False})
    for number, size in enumerate(sizes):
        lone.add(f"{number}", tokens_of(number, size), 4, calls=(SEARCH,), session_id=f"{number}")
        while not lone.idle:
            lone.step()
    lone.add("runs", tokens_of(9, 16), 100, session_id="runs")
    lone.step()
    return lone


@pytest.mark.parametrize(("policy", "waits"), [("agentcache", True), ("agentcache-interactive", False)])
def test_an_engine_has_new_jobs_wait(tiny_model_path: str, policy: str, waits: bool) -> None:
    lone = make_crowded(tiny_model_path, policy, 224, 224, 224)
    lone.add("new", tokens_of(8, 100), 30, calls=(SEARCH,), session_id="new")
    lone.scheduler.clock.now_s += OUT_OF_PATIENCE_S
    assert ("new" not in lone.step().scheduled) is waits
    lone.scheduler.check_integrity()
    lone.abort("runs")
    while "new" not in lone.step().scheduled:
        lone.scheduler.clock.now_s += 1.0
    run_until_idle(lone)


def test_of_a_burst_as_many_begin_as_there_is_room_for(tiny_model_path: str) -> None:
    """Jobs of nine blocks want eleven each by their next turn, so 44 have room for one beside these and what runs."""
    lone = make_crowded(tiny_model_path, "agentcache", 144, 144)
    for number in range(4):
        lone.add(f"new {number}", tokens_of(20 + number, 20), 300, calls=(SEARCH,), session_id=f"new {number}")
    lone.scheduler.clock.now_s += OUT_OF_PATIENCE_S
    assert sum(name.startswith("new") for name in lone.step().scheduled) == 1
    run_until_idle(lone)


def test_an_abort_while_it_waits_leaves_nothing(tiny_model_path: str) -> None:
    lone = make_crowded(tiny_model_path, "agentcache", 224, 224, 224)
    lone.add("new", tokens_of(8, 100), 30, calls=(SEARCH,), session_id="new")
    assert all("new" not in lone.step().scheduled for _ in range(5))
    lone.abort("new")
    run_until_idle(lone)
