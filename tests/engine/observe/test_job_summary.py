"""The one record of a job: what the requests of a tracked job come to."""

from __future__ import annotations

from typing import Any

from made_turns import end, make_entry, make_turn
from tracked_requests import ASKED, Tracked
from vllm.v1.request import RequestStatus

from agentcache.engine.constants import AGENT_ARGUMENT
from agentcache.engine.job_summary import JobSummary
from agentcache.engine.observe.stats import JobStats
from agentcache.engine.rpc.core_calls import release
from agentcache.engine.rpc.job_views import view_session
from agentcache.engine.views import TurnView

# 2026-11-30 12:00:00 UTC.
NOON_S = 1_796_040_000.0


def sum_up(*turns: TurnView, **entry: Any) -> JobSummary:
    """Sum up the turns of a job that arrived at 10 and left at 50 s, which is noon. A token costs 1 ms."""
    log = JobStats(lambda *tokens: sum(tokens[1:]) / 1000, gpus=2, wall_clock=lambda: NOON_S)
    log.begin("job", 10.0, "named")
    for turn in turns:
        log.add_turn("job", turn)
    end(log, make_entry(turns=len(turns), **entry))
    ((record, _),) = log.ended
    return record.summary


def test_a_record_has_the_times_of_the_wall() -> None:
    record = sum_up(make_turn(finished_s=20.0), make_turn(1, finished_s=42.5))
    assert record.started_at == "2026-11-30T11:59:20.000+00:00"
    assert record.finished_at == "2026-11-30T11:59:52.500+00:00"
    assert record.ended_at == "2026-11-30T12:00:00.000+00:00"
    assert (record.version, record.cause, record.latency_s) == (1, "job over", 32.5)


def test_a_record_sums_up_all_turns_not_only_those_kept() -> None:
    turns = [make_turn(number, hit=40) for number in range(100)]
    for number, turn in enumerate(turns):
        turn.computed_tokens, turn.waits, turn.request_id = 60, {"pins": 0.5, "load": 0.25}, f"request {number}"
        turn.thread = "sub-agent" if number % 2 else None
    turns[99].first_token_s = 15.0
    record = sum_up(*turns, calls=7)
    assert (record.requests, record.turns, record.tool_calls) == (100, 100, 7)
    assert (record.prompt_tokens, record.cached_tokens, record.computed_tokens) == (10_000, 4000, 6000)
    assert (record.output_tokens, record.cached_by_place) == (700, {"gpu": 4000})
    assert record.waits_s == {"pins": 50.0, "load": 25.0}
    assert abs(record.gpu_s - 2 * 6.7) < 1e-9
    assert record.ttft_mean_s is not None
    assert abs(record.ttft_mean_s - (99 * 1.0 + 5.0) / 100) < 1e-9
    assert record.ttft_max_s == 5.0
    assert record.request_ids == [f"request {number}" for number in range(36, 100)]
    assert record.threads == ["sub-agent"]


def test_hits_are_told_by_place_where_there_are_two_caches() -> None:
    turns = [make_turn(0, hit=30), make_turn(1, hit=50)]
    turns[0].hits, turns[1].hits = {"gpu": 30, "host": 0}, {"gpu": 10, "host": 40}
    assert sum_up(*turns).cached_by_place == {"gpu": 40, "host": 40}


def test_a_job_of_cut_replies_alone_has_a_record_too() -> None:
    log = JobStats()
    log.begin("job", 10.0, "named")
    log.add_turn("job", make_turn(status="cut off"))
    end(log, make_entry(turns=0, failures=1))
    ((record, _),) = log.ended
    assert (record.summary.requests, record.summary.turns, record.summary.output_tokens) == (1, 0, 7)
    assert log.counts.job_latency_s.count == 0


def test_a_live_job_has_no_record_yet() -> None:
    tracked = Tracked()
    tracked.turn("r", ASKED, session="s")
    assert view_session(tracked.tracker, "s")[0].summary is None


def test_requests_are_known_by_their_clients_ids_and_agents() -> None:
    tracked = Tracked()
    tracked.turn("chatcmpl-1-0a1b2c3d", ASKED, session="s", marks={AGENT_ARGUMENT: "sub"})
    (turn,) = view_session(tracked.tracker, "s")[0].turns
    assert (turn.request_id, turn.thread) == ("chatcmpl-1", "sub")
    release(tracked.tracker, "s")
    (job,) = view_session(tracked.tracker, "s", with_ended=True)
    assert job.summary is not None
    assert (job.summary.request_ids, job.summary.threads) == (["chatcmpl-1"], ["sub"])


def test_what_never_ran_computed_nothing() -> None:
    tracked = Tracked()
    ran = tracked.ask("ran", ASKED, session="s")
    tracked.admit(ran)
    ran.num_computed_tokens = 5
    tracked.reply(ran, 0, RequestStatus.FINISHED_ABORTED)
    waited = tracked.ask("waited", ASKED, session="s")
    tracked.reply(waited, 0, RequestStatus.FINISHED_ABORTED)
    whole = tracked.ask("whole", ASKED, session="s")
    tracked.admit(whole, cached_tokens=16)
    tracked.reply(whole)
    turns = view_session(tracked.tracker, "s")[0].turns
    assert [turn.computed_tokens for turn in turns] == [5, 0, len(ASKED) - 16]
