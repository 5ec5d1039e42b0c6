"""Each second that a turn waits counts for what held it then."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lone_scheduler import BLOCK_SIZE, LoneScheduler, make_config, make_scheduler
from tracked_requests import Tracked

from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.request_state import Waits
from agentcache.engine.rpc.job_views import count_runtime, view_session
from agentcache.engine.views import TurnView
from agentcache.engine.waits import WaitReason
from agentcache.policy.runtime_policy import RuntimePolicy
from agentcache.sim.clock import VirtualClock

NOTES = st.lists(st.tuples(st.sampled_from(get_args(WaitReason)), st.floats(0.01, 100)))


@given(notes=NOTES, rest_s=st.floats(0.01, 100))
def test_all_seconds_count_once(notes: list[tuple[str, float]], rest_s: float) -> None:
    waits, now_s = Waits(5.0), 5.0
    expected = dict.fromkeys(get_args(WaitReason), 0.0)
    for (reason, seconds), before in zip(notes, ["batch full", *(reason for reason, _ in notes)], strict=False):
        now_s += seconds
        expected[before] += seconds
        waits.note(reason, now_s)
    expected[waits.reason] += rest_s
    assert waits.end(now_s + rest_s) == pytest.approx({name: s for name, s in expected.items() if s}, abs=1e-5)


def test_less_than_a_step_is_no_wait() -> None:
    waits = Waits(0.0)
    waits.note("pins", 0.0005)
    assert waits.end(2.0) == {"pins": 1.9995}


def ask_and_reply(tracked: Tracked, *, runs: bool) -> TurnView:
    request = tracked.ask("a", [1, 2, 3], session="job")
    tracked.clock.now_s += 1.0
    tracked.tracker.note_wait(request, "pins")
    tracked.clock.now_s += 2.0
    tracked.tracker.note_wait(request, "pins")
    tracked.clock.now_s += 4.0
    if runs:
        tracked.tracker.note_wait(request, "batch full")
        tracked.admit(request)
        tracked.clock.now_s += 8.0
        # It is preempted, and held again.
        tracked.tracker.note_wait(request, "load")
    tracked.reply(request)
    (view,) = view_session(tracked.tracker, "job")
    return view.turns[0]


@pytest.mark.parametrize("runs", [True, False])
def test_a_turns_view_says_why_it_waited(*, runs: bool) -> None:
    tracked = Tracked(RuntimePolicy())
    assert ask_and_reply(tracked, runs=runs).waits == {"batch full": 1.0, "pins": 6.0}
    counted = count_runtime(tracked.tracker).waits
    assert {reason: (waited.count, waited.total) for reason, waited in counted.items()} == {
        "batch full": (1, 1.0),
        "pins": (1, 6.0),
    }


def make_lone(model_path: str, clock: VirtualClock, *, seats: int = 6, **knobs: object) -> LoneScheduler:
    config = make_config(model_path, SCHEDULER_CLASS, {"max_num_seqs": seats}, policy="agentcache", **knobs)
    return LoneScheduler(make_scheduler(config, 40, clock=clock.now))


def run(lone: LoneScheduler, clock: VirtualClock) -> None:
    while not lone.idle:
        lone.step()
        clock.advance_to(clock.now() + 1.0)


def waits_of(lone: LoneScheduler, session: str) -> dict[str, float]:
    (view,) = view_session(lone.scheduler.tracker, session)  # type: ignore[attr-defined]
    waits: dict[str, float] = view.turns[-1].waits
    return waits


def test_without_a_seat_the_batch_is_full(tiny_model_path: str) -> None:
    clock = VirtualClock()
    lone = make_lone(tiny_model_path, clock, seats=1)
    for name in ("first", "second"):
        lone.add(name, list(range(20)), 4, calls=[], session_id=name)
    run(lone, clock)
    assert waits_of(lone, "first") == {}
    assert waits_of(lone, "second") == {"batch full": 4.0}


def test_gaps_that_are_filled_are_waited_for(tiny_model_path: str) -> None:
    clock = VirtualClock()
    lone = make_lone(tiny_model_path, clock, tuning={"row_s": 0.0})
    prompt = list(range(100, 100 + 20 * BLOCK_SIZE + 1))
    lone.add("a", prompt, 2, calls=[], session_id="job")
    run(lone, clock)
    # More than a step computes.
    gap = lone.find_blocks(prompt)[4:12]
    lone.scheduler.kv_cache_manager.evict_blocks(set(gap))
    lone.add("b", prompt, 2, calls=[], session_id="job")
    run(lone, clock)
    assert waits_of(lone, "job") == {"fill": 1.0}
