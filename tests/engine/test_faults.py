"""What clients, tools, clocks and disks do wrong: memory stays bounded, and serving goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lone_scheduler import LoneScheduler
from steered_scheduler import STEERED, do_turn, learn_that_tools_are_fast, make_lone, run_until_idle, tokens_of
from tracked_requests import count_chains

from agentcache.engine.rpc.job_views import count_runtime, view_session
from tool_runtime.agent.job import ToolCall
from tool_runtime.learning import duration_store
from tool_runtime.learning.durations_file import load_durations
from tool_runtime.learning.job_table import MAX_EXPIRED
from tool_runtime.learning.tool_key import ToolKey

SEARCH = ToolCall("search", "{}")


def assert_nothing_is_left(lone: LoneScheduler) -> None:
    """Of requests; after an hour, of jobs."""
    tracker = lone.scheduler.tracker
    assert (tracker.states, lone.scheduler.evictor.adopted) == ({}, 0)
    lone.scheduler.clock.now_s += 4000
    # So many jobs leave in a step.
    for _ in range(0, len(tracker.runtime.jobs) + 1, MAX_EXPIRED):
        tracker.step()
    lone.scheduler.check_integrity()
    assert (len(tracker.pins), lone.scheduler.evictor.pinned, lone.scheduler.evictor.reservations) == (0, 0, 0)
    assert (tracker.stats.jobs, len(tracker.runtime.jobs), count_chains(tracker)) == ({}, 0, 0)
    assert tracker.pins.ended.total() == tracker.pins.began


@pytest.mark.parametrize("policy", STEERED)
@pytest.mark.parametrize("steps", [0, 1, 4, 12])
def test_a_client_that_vanishes_leaves_nothing_behind(tiny_model_path: str, policy: str, steps: int) -> None:
    """In the queue, in its prefill, or while it decodes; its first turn, or back for its second."""
    lone = make_lone(tiny_model_path, policy, pins={"budget": 1.0})
    learn_that_tools_are_fast(lone)
    known = do_turn(lone, "one", tokens_of(1, 100), (SEARCH,), session_id="back")
    lone.add("first", tokens_of(2, 200), 50, calls=(SEARCH,), session_id="new")
    lone.add("second", [*known, *tokens_of(3, 100)], 50, calls=(SEARCH,), session_id="back")
    for _ in range(steps):
        lone.scheduler.clock.now_s += 0.01
        lone.step()
    for name in ("first", "second"):
        lone.abort(name)
        lone.scheduler.check_integrity()
    run_until_idle(lone)
    assert do_turn(lone, "after", tokens_of(4, 100), (), session_id="other")
    assert_nothing_is_left(lone)


@pytest.mark.parametrize("policy", STEERED)
def test_tools_that_never_return_cost_their_pins_and_no_more(tiny_model_path: str, policy: str) -> None:
    lone = make_lone(tiny_model_path, policy, pins={"budget": 1.0})
    learn_that_tools_are_fast(lone)
    for number in range(6):
        do_turn(lone, f"{number}", tokens_of(number, 150), (SEARCH,), session_id=f"{number}")
    lone.scheduler.clock.now_s += 600
    assert do_turn(lone, "after", tokens_of(99, 400), ())
    pins = lone.scheduler.tracker.pins
    assert pins.began > 0
    assert len(pins) == 0, "the tool is far beyond all that it ever took"
    before = lone.scheduler.tracker.runtime.durations.history(ToolKey("search")).curve.returned_within(3000)
    assert_nothing_is_left(lone)
    after = lone.scheduler.tracker.runtime.durations.history(ToolKey("search")).curve.returned_within(3000)
    assert after < before


@pytest.mark.parametrize("policy", STEERED)
@pytest.mark.parametrize("jump_s", [-1e5, 1e7])
def test_work_goes_on_when_the_clock_jumps(tiny_model_path: str, policy: str, jump_s: float) -> None:
    lone = make_lone(tiny_model_path, policy, pins={"budget": 1.0})
    learn_that_tools_are_fast(lone)
    known = do_turn(lone, "one", tokens_of(1, 100), (SEARCH,), session_id="job")
    taught = lone.scheduler.tracker.runtime.durations.history(ToolKey("search")).tool_count
    lone.add("runs", tokens_of(2, 300), 30, calls=(SEARCH,))
    lone.step()
    lone.add("waits", tokens_of(3, 300), 5, calls=())
    lone.scheduler.clock.now_s += jump_s
    lone.add("two", [*known, *tokens_of(4, 30)], 5, calls=(), session_id="job")
    finished = [name for step in run_until_idle(lone) for name in step.finished]
    assert sorted(finished) == ["runs", "two", "waits"]
    history = lone.scheduler.tracker.runtime.durations.history(ToolKey("search"))
    # A jump ahead cannot be told from a long absence, after which a job is new.
    assert history.tool_count == taught
    lone.scheduler.clock.now_s += abs(jump_s)
    assert_nothing_is_left(lone)


def test_the_scheduler_keeps_a_session_id_of_10_mb_short(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, "agentcache")
    session = "s" * 10_000_000
    known = do_turn(lone, "one", tokens_of(1, 100), (SEARCH,), session_id=session)
    do_turn(lone, "two", [*known, *tokens_of(2, 30)], (), session_id=session)
    (view,) = view_session(lone.scheduler.tracker, session)
    assert (view.turn_count, len(view.model_dump_json()) < 5000) == (2, True)
    assert_nothing_is_left(lone)


def test_many_pinned_sessions_leave_no_more_than_the_table_holds(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, "continuum-code", tuning={"max_jobs": 20})
    tracker: Any = lone.scheduler.tracker
    for number in range(500):
        lone.add(f"{number}", tokens_of(number, 40), 2, calls=(SEARCH,), session_id=f"{number}")
        lone.step()
        lone.step()
        lone.scheduler.clock.now_s += 0.01
    run_until_idle(lone)
    tracker.step()
    lone.scheduler.check_integrity()
    assert len(tracker.stats.jobs) == len(tracker.runtime.jobs) == 20
    assert count_runtime(tracker).jobs_ended == {"table full": 480}
    assert len(tracker.pins) <= 20
    assert_nothing_is_left(lone)


def test_a_damaged_durations_file_is_one_line_and_is_replaced(
    tiny_model_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(duration_store.logger, "warning", lambda text, *values: lines.append(text % values))
    path = tmp_path / "durations.json"
    path.write_text('{"format":"agentcache durations"')
    lone = make_lone(tiny_model_path, "agentcache", runtime={"durations_file": str(path), "tool_parser": None})
    (line,) = lines
    assert line.startswith(f"{path}: tool durations are damaged (")
    assert "\n" not in line
    known = do_turn(lone, "one", tokens_of(1, 100), (SEARCH,), session_id="job")
    lone.scheduler.clock.now_s += 5
    do_turn(lone, "two", [*known, *tokens_of(2, 30)], (), session_id="job")
    lone.scheduler.shutdown()
    states, problem = load_durations(path)
    assert problem is None
    assert {state.key: state.count for state in states}[ToolKey("search")] == 1
    again = make_lone(tiny_model_path, "agentcache", runtime={"durations_file": str(path)})
    assert again.scheduler.tracker.runtime.durations.history(ToolKey("search")).tool_count == 1
