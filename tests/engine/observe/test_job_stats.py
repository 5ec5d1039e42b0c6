from __future__ import annotations

from typing import Any

import pytest
from made_turns import end, make_entry, make_turn

from agentcache.engine.blocks.pins import Pin
from agentcache.engine.observe import stats
from agentcache.engine.observe.stats import JobStats, add
from agentcache.engine.rpc.job_views import view_ended, view_job
from agentcache.engine.views import Histogram, ToolCounts
from tool_runtime.learning.job_entry import Departure, Gap, PendingTurn
from tool_runtime.learning.tool_key import HUMAN, ToolKey


def make_gap(key: ToolKey, seconds: float) -> Gap:
    return Gap("r", PendingTurn(key, 0.0, 0), seconds, certain=True)


def test_a_histogram_counts_up_to_its_bounds() -> None:
    histogram = Histogram((1, 5), (0, 0))
    for value in (0.5, 1, 1.5, 5, 7):
        add(histogram, value)
    assert (histogram.bounds, histogram.buckets, histogram.count, histogram.total) == ((1, 5), (2, 4), 5, 15.0)


def test_a_job_from_its_beginning_to_its_end() -> None:
    log = JobStats()
    log.begin("job@tenant", 10.0, "named")
    record = log.jobs["job@tenant"]
    log.begin("job@tenant", 99.0, "named")
    assert log.jobs["job@tenant"] is record
    log.add_turn("job@tenant", make_turn(0, finished_s=12.0, hit=0))
    log.add_turn("job@tenant", make_turn(1, finished_s=14.0, hit=64, lost=32))
    end(log, make_entry("job@tenant", turns=2, client_session="job"))
    assert not log.jobs
    counts = log.counts
    assert counts.jobs_ended == {"job over": 1}
    assert (counts.job_latency_s.count, counts.job_latency_s.total) == (1, 4.0)
    assert (counts.job_turns.count, counts.job_turns.total) == (1, 2.0)
    assert (counts.prompt_tokens, counts.hit_tokens, counts.recomputed_tokens) == (200, 64, 32)
    (view,) = view_ended(log, 50.0)
    assert (view.session, view.now_s, view.is_over, view.turn_count) == ("job", 50.0, True, 2)
    assert [turn.turn for turn in view.turns] == [0, 1]


def test_an_answer_s_latency_runs_from_its_first_request() -> None:
    log = JobStats()

    def take_turn(arrived_s: float, finished_s: float, **turn: Any) -> None:
        log.begin("job", arrived_s, "named")
        log.add_turn("job", make_turn(finished_s=finished_s, arrived_s=arrived_s, **turn))

    def answers() -> tuple[int, float]:
        counts = log.counts.answer_latency_s
        return counts.count, counts.total

    take_turn(10.0, 12.0)
    take_turn(15.0, 16.0, tools=(), status="aborted")
    take_turn(17.0, 18.0, tools=(), status="cut off")
    assert answers() == (0, 0.0)
    take_turn(20.0, 22.0, tools=())
    assert answers() == (1, 12.0)
    # A human's pause counts for nobody.
    take_turn(100.0, 103.0, tools=())
    assert answers() == (2, 15.0)


def test_of_two_requests_at_a_time_each_has_its_answer() -> None:
    log = JobStats()
    for arrived_s in (10.0, 13.0):
        log.begin("job", arrived_s, "named")
    for arrived_s, finished_s in ((13.0, 14.0), (10.0, 15.0)):
        log.add_turn("job", make_turn(arrived_s=arrived_s, finished_s=finished_s, tools=()))
    counts = log.counts.answer_latency_s
    assert (counts.count, counts.total) == (2, 4.0 + 5.0)


def test_a_job_without_a_whole_reply_has_no_latency() -> None:
    log = JobStats()
    log.begin("job", 10.0, "named")
    end(log, make_entry(turns=0, failures=1), Departure.IDLE)
    assert log.counts.jobs_ended == {"expired": 1}
    assert log.counts.job_latency_s.count == 0
    assert list(view_ended(log, 0.0)) == []


def test_only_the_latest_turns_and_ended_jobs_are_kept() -> None:
    log = JobStats()
    log.begin("job", 0.0, "named")
    for turn in range(100):
        log.add_turn("job", make_turn(turn))
    assert [turn.turn for turn in log.jobs["job"].turns] == list(range(36, 100))
    for number in range(1000):
        log.begin(f"{number}", 0.0, "named")
        end(log, make_entry(f"{number}"), Departure.CAPACITY)
    assert [view.session for view in view_ended(log, 0.0)] == [f"{number}" for number in range(999, 499, -1)]
    assert log.counts.job_turns.count == 1000


def make_pin(turn: int) -> Pin:
    return Pin(turn, f"{turn}", "job", None, turn, 10.0, 20.0, 1.0, lambda _: 0.0, blocks=3)


def test_turns_and_pins_are_bounded_and_the_idlest_go_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stats, "_MAX_TURNS_IN_ALL", 100)
    log = JobStats()
    for number in range(50):
        log.begin(f"{number}", 10.0, "named")
        for turn in range(10):
            log.add_turn(f"{number}", make_turn(turn, finished_s=20.0))
            log.add_pin(f"{number}", make_pin(turn))
    assert [len(log.jobs[f"{number}"].turns) for number in (0, 39, 40, 49)] == [0, 0, 10, 10]
    log.add_turn("49", make_turn(10))
    assert [turn.turn for turn in log.jobs["40"].turns] == list(range(1, 10))
    assert [pin.turn for pin in log.jobs["40"].pins] == list(range(1, 10))
    assert not log.jobs["39"].pins
    # Its latency is known although its turns are not.
    end(log, make_entry("0", turns=10))
    assert log.counts.job_latency_s.total == 10.0


def test_pins_are_shown_with_turns_that_ended_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "_MAX_TURNS_IN_ALL", 2)
    log = JobStats()
    log.begin("job", 10.0, "named")
    for turn in (1, 0, 2):
        log.add_turn("job", make_turn(turn))
        log.add_pin("job", make_pin(turn))
    view = view_job(log.jobs["job"], make_entry(turns=3), None, 21.0, is_over=False)
    assert [turn.turn for turn in view.turns] == [0, 2]
    assert [pin.turn for pin in view.pins] == [0, 2]


def test_a_long_job_beside_others_is_shown_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "_MAX_TURNS_IN_ALL", 70)
    log = JobStats()
    for job in ("long", "short"):
        log.begin(job, 10.0, "named")
    log.add_turn("short", make_turn(0))
    for turn in range(200):
        log.add_turn("long", make_turn(turn))
    assert [turn.turn for turn in log.jobs["long"].turns] == list(range(136, 200))
    assert not log.jobs["short"].turns


def test_a_gap_counts_for_its_tool_for_other_or_for_the_human() -> None:
    log = JobStats()
    for number in range(40):
        log.add_gap("job", make_gap(ToolKey(f"tool {number}", "a command"), 2.0), 9.0)
    log.add_gap("job", make_gap(ToolKey("tool 3"), 1.0), 9.0)
    for _ in range(2):
        log.add_gap("job", make_gap(HUMAN, 30.0), 9.0)
    tools = log.counts.tools
    assert len(tools) == 34
    assert tools["tool 3"] == ToolCounts(gaps=2, seconds=3.0)
    assert tools["other"] == ToolCounts(gaps=8, seconds=16.0)
    assert tools["(human)"] == ToolCounts(gaps=2, seconds=60.0)


@pytest.mark.parametrize("is_over", [True, False])
def test_a_view_tells_what_a_job_waits_for(is_over: bool) -> None:
    log = JobStats()
    log.begin("job", 10.0, "named")
    record = log.jobs["job"]
    entry = make_entry(turns=3, calls=4, failures=1, running={"r": 18.0})
    for name, key in (("a", ToolKey("bash", "make")), ("b", HUMAN), ("c", ToolKey("bash+read"))):
        entry.pending[name] = PendingTurn(key, 15.0, 0)
    view = view_job(record, entry, None, 21.0, is_over=is_over)
    assert (view.arrived_s, view.last_active_s, view.now_s) == (10.0, 20.0, 21.0)
    assert (view.turn_count, view.call_count, view.failure_count, view.running) == (3, 4, 1, 1)
    assert view.waits_for == ("bash", "bash+read")
    assert view.is_over is is_over
    assert view.pins == ()
