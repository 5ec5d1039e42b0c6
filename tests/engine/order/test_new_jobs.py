"""A job begins once the caches have room for it beside those under way, or has waited for as long as may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from lone_scheduler import LoneScheduler
from steered_scheduler import SEARCH, make_patient, run_until_idle, tokens_of
from tracked_requests import ASKED, Tracked
from vllm.v1.request import RequestStatus
from waiting_requests import make_waiting

from agentcache.engine.constants import ROLES_ARGUMENT, TOOLS_DECLARED_ARGUMENT
from agentcache.policy.runtime_policy import LONGEST_S

# No longer than what a tool takes that runs long.
OUT_OF_PATIENCE_S = 16.0


def make_full() -> Tracked:
    tracked = make_waiting(pinned=0)
    give_places(tracked, 0)
    return tracked


def give_places(tracked: Tracked, places: int) -> None:
    """From the next step on there is room for so many jobs that have had no turn."""
    tracked.places = places
    tracked.tracker.step()


def test_a_new_job_waits_for_room() -> None:
    tracked = make_full()
    request = tracked.ask("new", ASKED, session="new")
    tracked.clock.now_s += 60.0
    assert tracked.tracker.find_wait(request, available=100) == "new job", "it is out of patience"
    give_places(tracked, 1)
    assert not tracked.tracker.find_wait(request, available=100)


def test_it_waits_no_longer_than_clients_do() -> None:
    tracked = make_full()
    request = tracked.ask("new", ASKED, session="new")
    tracked.clock.now_s += LONGEST_S - 1.0
    assert tracked.tracker.find_wait(request, available=100) == "new job"
    tracked.clock.now_s += 1.0
    assert not tracked.tracker.find_wait(request, available=100)


def test_those_that_have_begun_go_on() -> None:
    tracked = make_full()
    give_places(tracked, 1)
    first, beside = (tracked.ask(name, ASKED, session="a") for name in ("first", "beside"))
    assert not tracked.tracker.find_wait(first, available=100)
    tracked.admit(first)
    give_places(tracked, 0)
    assert not tracked.tracker.find_wait(beside, available=100), "its job has begun"
    _, history = tracked.reply(first)
    again = tracked.ask("again", [*history, 5], session="a")
    assert not tracked.tracker.find_wait(again, available=100)


@pytest.mark.parametrize("marks", [{}, {TOOLS_DECLARED_ARGUMENT: ["search"]}])
def test_without_tools_no_job_begins(marks: Mapping[str, Any]) -> None:
    """What the API server tells: a chat without tools neither waits for room nor takes it."""
    tracked = make_full()
    give_places(tracked, 1)
    chat = tracked.ask("chat", ASKED, session="chat", marks={ROLES_ARGUMENT: "u", **marks})
    assert not tracked.tracker.find_wait(chat, available=100)
    tracked.admit(chat)
    tracked.tracker.step()
    agent = tracked.ask("agent", ASKED, session="agent")
    assert tracked.tracker.find_wait(agent, available=100) == ("new job" if marks else None)
    give_places(tracked, 0)
    second = tracked.ask("second", ASKED, session="second", marks={ROLES_ARGUMENT: "u", **marks})
    assert tracked.tracker.find_wait(second, available=100) == ("new job" if marks else None)


def test_one_that_does_not_begin_leaves_its_room() -> None:
    """As where there are no blocks for it."""
    tracked = make_full()
    give_places(tracked, 1)
    first, second = (tracked.ask(name, ASKED, session=name) for name in ("first", "second"))
    for goes, waits in ((first, second), (second, first)):
        tracked.tracker.step()
        for _ in range(2):
            assert not tracked.tracker.find_wait(goes, available=100)
            assert tracked.tracker.find_wait(waits, available=100) == "new job"


@pytest.mark.parametrize("is_aborted", [False, True])
def test_a_job_begins_anew_when_its_first_turn_came_to_nothing(is_aborted: bool) -> None:
    tracked = make_full()
    give_places(tracked, 1)
    first = tracked.ask("first", ASKED, session="a")
    tracked.admit(first)
    if is_aborted:
        tracked.reply(first, status=RequestStatus.FINISHED_ABORTED)
    give_places(tracked, 0)
    second = tracked.ask("second", ASKED, session="a")
    assert tracked.tracker.find_wait(second, available=100) == ("new job" if is_aborted else None)


def make_crowded(model_path: str, policy: str, *sizes: int) -> LoneScheduler:
    """Jobs with prompts of so many tokens wait for their tools, there is room for 704, and another request runs."""
    lone = make_patient(model_path, policy, blocks=44, engine={"max_num_seqs": 8}, segments={"enabled": False})
    for number, size in enumerate(sizes):
        lone.add(f"{number}", tokens_of(number, size), 4, calls=(SEARCH,), session_id=f"{number}")
        run_until_idle(lone)
    lone.add("runs", tokens_of(9, 16), 100, session_id="runs")
    lone.step()
    return lone


@pytest.mark.parametrize(("policy", "waits"), [("agentcache", True), ("agentcache-interactive", False)])
def test_an_engine_keeps_new_jobs_out(tiny_model_path: str, policy: str, waits: bool) -> None:
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
    """Beside two jobs of ten blocks and one that has begun there is room for one of 44."""
    lone = make_crowded(tiny_model_path, "agentcache", 160, 160)
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
