from __future__ import annotations

import pytest
from hand_clock import Clock

from tool_runtime.learning.continuum import ContinuumCode
from tool_runtime.learning.durations import Durations, Ended
from tool_runtime.learning.job_entry import Departure
from tool_runtime.learning.job_table import Parent
from tool_runtime.learning.runtime import AgentRuntime
from tool_runtime.learning.tool_key import HUMAN, ToolKey
from tool_runtime.learning.ttl import RELEASE, Hold, Situation

BASH = ToolKey("bash")
MAKE = ToolKey("bash", "make")


class AskedEstimator:
    """Notes what it is asked, and holds for the age that it is told."""

    def __init__(self) -> None:
        self.situations: list[Situation] = []

    def decide(self, situation: Situation) -> Hold:
        self.situations.append(situation)
        return Hold(situation.age_s + 1, 5.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def runtime(clock: Clock) -> AgentRuntime:
    return AgentRuntime(clock=clock, max_jobs=3, max_idle_s=60.0)


def do_turn(runtime: AgentRuntime, session: str, request: str, *calls: ToolKey) -> None:
    runtime.arrived(session, request)
    runtime.finished(session, request, calls)


def observed(runtime: AgentRuntime, key: ToolKey) -> tuple[int, float | None]:
    history = runtime.durations.history(key)
    return history.tool_count, history.tool_mean_s


def test_the_gap_behind_a_turn_is_learned_from(runtime: AgentRuntime, clock: Clock) -> None:
    do_turn(runtime, "s", "a", MAKE)
    clock.now_s += 3
    gap = runtime.arrived("s", "b")
    assert gap is not None
    assert (gap.turn.key, gap.seconds, gap.certain) == (MAKE, 3.0, True)
    assert observed(runtime, MAKE) == observed(runtime, BASH) == (1, 3.0)
    assert observed(runtime, HUMAN) == (0, None)


def test_a_human_s_pause_is_learned_apart(runtime: AgentRuntime, clock: Clock) -> None:
    do_turn(runtime, "s", "a")
    clock.now_s += 40
    runtime.arrived("s", "b")
    assert (observed(runtime, HUMAN), observed(runtime, BASH)) == ((1, 40.0), (0, None))


def test_what_is_not_certain_teaches_nothing(runtime: AgentRuntime, clock: Clock) -> None:
    for request in "ab":
        runtime.arrived("s", request, Parent.NONE)
    for request in "ab":
        runtime.finished("s", request, [BASH])
    clock.now_s += 3
    gap = runtime.arrived("s", "c")
    assert gap is not None
    assert not gap.certain
    assert observed(runtime, BASH) == (0, None)


def test_a_reply_that_came_to_nothing_teaches_nothing(runtime: AgentRuntime, clock: Clock) -> None:
    runtime.arrived("s", "a")
    runtime.failed("s", "a")
    clock.now_s += 3
    assert runtime.arrived("s", "b") is None
    assert runtime.durations.history(BASH).evidence == 0
    assert runtime.durations.history(HUMAN).evidence == 0


def test_a_turn_that_nobody_answered_is_learned_as_still_out(runtime: AgentRuntime, clock: Clock) -> None:
    do_turn(runtime, "s", "a", BASH)
    clock.now_s += 61
    (departed,) = runtime.expire()
    assert departed.cause is Departure.IDLE
    assert observed(runtime, BASH) == (0, None)
    expected = Durations()
    expected.observe(BASH, 61.0, Ended.STILL_OUT, clock.now_s)
    learned = runtime.durations.history(BASH)
    assert learned.evidence == expected.history(BASH).evidence > 0
    for seconds in (1.0, 30.0, 100.0):
        assert learned.curve.returned_within(seconds) == expected.history(BASH).curve.returned_within(seconds)
    assert runtime.expire() == []


def test_a_job_that_its_client_ended_leaves_nothing_unanswered(runtime: AgentRuntime) -> None:
    do_turn(runtime, "s", "a", BASH)
    assert runtime.jobs.end("s")
    (departed,) = runtime.expire()
    assert departed.cause is Departure.ENDED
    assert runtime.durations.history(BASH).evidence == 0


def test_a_clock_that_jumps_back_teaches_nothing(runtime: AgentRuntime, clock: Clock) -> None:
    do_turn(runtime, "s", "a", BASH)
    clock.now_s -= 700
    gap = runtime.arrived("s", "b")
    assert gap is not None
    assert (gap.seconds, gap.certain) == (0.0, False)
    assert observed(runtime, BASH) == (0, None)


def test_memoryfulness_is_of_the_jobs_that_left(runtime: AgentRuntime) -> None:
    assert runtime.memoryfulness == 0.0
    for session in "ab":
        for turn in range(5):
            do_turn(runtime, session, f"{turn}", BASH)
        runtime.jobs.end(session)
    assert runtime.memoryfulness == 0.0, "not before their departure is told"
    runtime.expire()
    assert runtime.memoryfulness == pytest.approx(1.0)
    for turn in range(40):
        do_turn(runtime, "long", f"{turn}", BASH)
    runtime.jobs.end("long")
    runtime.expire()
    assert runtime.memoryfulness < 0.9


def test_nothing_is_held_without_an_estimator(runtime: AgentRuntime) -> None:
    assert runtime.decide_hold(BASH, age_s=0.0, loss_s=9.0, prefill_s=9.0, share=0.1, queued=False) == RELEASE


def test_the_estimator_is_told_all_that_is_known(clock: Clock) -> None:
    estimator = AskedEstimator()
    runtime = AgentRuntime(clock=clock, estimator=estimator)
    do_turn(runtime, "s", "a", BASH)
    clock.now_s += 3
    runtime.arrived("s", "b")
    runtime.load.admitted(2.0, 0.0)
    runtime.load.admitted(4.0, 6.0)
    assert runtime.decide_hold(BASH, age_s=7.0, loss_s=8.0, prefill_s=9.0, share=0.5, queued=True) == Hold(8.0, 5.0)
    (situation,) = estimator.situations
    assert (situation.age_s, situation.loss_s, situation.prefill_s) == (7.0, 8.0, 9.0)
    assert situation.evicted_wait_s == 4.0
    assert situation.price == runtime.load.price(0.5, queued=True) > 0.5
    assert situation.memoryfulness == runtime.memoryfulness
    assert (situation.history.key, situation.history.tool_count) == (BASH, 1)


def test_an_estimator_decides_by_what_was_learned(clock: Clock) -> None:
    runtime = AgentRuntime(clock=clock, estimator=ContinuumCode())
    assert runtime.decide_hold(BASH, age_s=0.0, loss_s=1.0, prefill_s=1.0, share=0.1, queued=False).ttl_s == 2.0
    do_turn(runtime, "s", "a", BASH)
    clock.now_s += 50
    runtime.arrived("s", "b")
    assert runtime.decide_hold(BASH, age_s=0.0, loss_s=1.0, prefill_s=1.0, share=0.1, queued=False) == RELEASE


def test_the_factor_follows_what_was_learned(runtime: AgentRuntime, clock: Clock) -> None:
    assert runtime.correction_factor(BASH, 10.0, 0.5) == 1.0
    for number in range(20):
        do_turn(runtime, "s", f"{number}", BASH)
        clock.now_s += 1
    do_turn(runtime, "t", "slow", ToolKey("slow"))
    clock.now_s += 59
    runtime.arrived("t", "slow again")
    assert runtime.correction_factor(BASH, 10.0, 0.5) > 1.5
    assert runtime.correction_factor(ToolKey("slow"), 10.0, 0.5) < runtime.correction_factor(BASH, 10.0, 0.5)
    assert runtime.correction_factor(BASH, None, 0.5) == 1.0


def test_durations_of_an_earlier_run_are_gone_on_with(clock: Clock) -> None:
    durations = Durations()
    durations.observe(BASH, 4.0, Ended.RETURNED, clock.now_s)
    assert observed(AgentRuntime(clock=clock, durations=durations), BASH) == (1, 4.0)
    # An empty record is one as well.
    empty = Durations()
    assert AgentRuntime(clock=clock, durations=empty).durations is empty
