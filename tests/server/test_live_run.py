"""The engines' jobs as events of a run."""

from __future__ import annotations

from typing import Any

import pytest
from made_engine import make_job, make_turn, on_engine, two_turns

from agentcache.report.summary import summarize_policy
from agentcache.report.swim_lanes import build_lanes
from agentcache.server.live_run import build_lanes_run, build_run, name_jobs, shorten_session


def test_turns_become_requests_and_the_gaps_tool_calls() -> None:
    turns = make_turn(0, 50.0, tools=("search", "bash")), make_turn(1, 55.0, diverged_at=32)
    (job,) = name_jobs([on_engine(make_job("mine", *turns, now_s=60.0))])
    run = build_run("agentcache", [job], 16)
    first, second = run.requests
    assert (first.sent_s, first.first_token_s, first.finished_s, second.sent_s) == (0.0, 1.0, 2.0, 5.0)
    assert (first.queue_s, first.prefill_s, first.decode_s, first.ttft_s) == (0.5, 0.5, 1.0, 1.0)
    assert (first.cached_tokens, first.recomputed_tokens) == (64, 16)
    assert (first.error, second.diverged_at) == (None, 32)
    calls = [(call.turn, call.tool, call.started_s, call.finished_s) for call in run.tool_calls]
    assert calls == [(0, "search, bash", 2.0, 5.0), (1, "search", 7.0, 10.0)], "the last one is still out"
    assert run.jobs == []


def test_sub_agents_have_waits_of_their_own() -> None:
    turns = (
        make_turn(0, 50.0, tools=("task",)),
        make_turn(1, 53.0, thread="find", tools=("grep",)),
        make_turn(2, 57.0, thread="find", tools=()),
    )
    (job,) = name_jobs([on_engine(make_job("mine", *turns, waits_for=("bash+task",), now_s=60.0))])
    run = build_run("agentcache", [job], 16)
    assert [request.thread for request in run.requests] == [None, "find", "find"]
    calls = [(call.thread, call.tool, call.started_s, call.finished_s) for call in run.tool_calls]
    assert calls == [("find", "grep", 5.0, 7.0), (None, "task", 2.0, 10.0)], "the main agent's is still out"


def test_answers_of_sub_agents_end_no_job() -> None:
    turns = make_turn(0, 50.0, tools=()), make_turn(1, 55.0, thread="find", tools=(), status="failed")
    run = build_run("agentcache", name_jobs([on_engine(make_job("mine", *turns))]), 16)
    assert [(job.status, job.finished_s) for job in run.jobs] == [("finished", 2.0)]


@pytest.mark.parametrize(
    ("changes", "ended"),
    [
        ({}, True),
        ({"running": 1}, False),
        ({"waits_for": ("search",)}, False),
        ({"waits_for": ("search",), "is_over": True}, True),
    ],
)
def test_a_job_has_ended_when_it_has_its_answer(changes: dict[str, Any], ended: bool) -> None:
    (job,) = name_jobs([on_engine(two_turns("mine", 50.0, **changes))])
    assert len(build_run("agentcache", [job], 16).jobs) == ended


def test_a_job_whose_last_request_broke_off_may_try_again() -> None:
    broken = make_job("mine", make_turn(0, 50.0), make_turn(1, 55.0, tools=(), status="aborted"))
    assert build_run("agentcache", name_jobs([on_engine(broken)]), 16).jobs == []
    assert build_run("agentcache", name_jobs([on_engine(make_job("mine"))]), 16).jobs == []


def test_a_pause_of_the_human_is_no_tool_call() -> None:
    jobs = name_jobs([on_engine(make_job("mine", make_turn(0, 50.0, tools=()), make_turn(1, 90.0, tools=())))])
    assert build_run("agentcache", jobs, 16).tool_calls == []


@pytest.mark.parametrize(
    ("last", "status"),
    [("finished", "finished"), ("cut off", "finished"), ("aborted", "interrupted"), ("failed", "failed")],
)
def test_a_job_that_is_over_ended_as_its_last_turn_did(last: str, status: str) -> None:
    turns = make_turn(0, 50.0), make_turn(1, 60.0, tools=(), status=last)
    run = build_run("agentcache", name_jobs([on_engine(make_job("mine", *turns, is_over=True))]), 16)
    ((job,), figures) = run.jobs, summarize_policy(run)
    assert (job.status, job.started_s, job.finished_s, job.turns) == (status, 0.0, 12.0, 2)
    assert figures.job_latency_s.mean == (12.0 if status == "finished" else None)
    assert figures.turns == (2 if status == "finished" else 1), "answered requests"


def test_a_turn_that_never_ran_has_no_times() -> None:
    turn = make_turn(0, 50.0, scheduled_s=None, first_token_s=None, status="aborted", output_tokens=0)
    (request,) = build_run("agentcache", name_jobs([on_engine(make_job("mine", turn))]), 16).requests
    assert (request.first_token_s, request.queue_s, request.prefill_s, request.error) == (None, None, None, "aborted")


def test_engines_with_other_clocks_share_one_time_axis() -> None:
    far = two_turns("far", 900_000.0, now_s=900_020.0)
    near = two_turns("near", 40.0, now_s=50.0)
    run = build_run("agentcache", name_jobs([on_engine(near), on_engine(far, 1)]), 16)
    assert {(request.job, request.sent_s) for request in run.requests if request.turn == 0} == {
        ("far", 0.0),
        ("near", 10.0),
    }


def test_names_are_short_printable_and_apart() -> None:
    sessions = ["a" * 15 + "-x-" + "b" * 15, "a" * 15 + "-y-" + "b" * 15, "line\nbreak\x00", "same", "same"]
    names = [job.name for job in name_jobs([on_engine(two_turns(session, 10.0)) for session in sessions])]
    assert len(set(names)) == len(sessions)
    assert names[-2:] == ["same", "same (2)"]
    assert all(len(name) <= 20 and name.isprintable() for name in names)
    assert shorten_session("line\nbreak\x00") == "line·break·"


def test_lanes_show_the_last_active_jobs_and_mark_no_open_one() -> None:
    views = [on_engine(make_job(f"job {number}", make_turn(0, 100.0 * number), now_s=2000.0)) for number in range(10)]
    views[9] = on_engine(two_turns("over", 900.0, now_s=2000.0, is_over=True))
    lanes = build_lanes(build_lanes_run("agentcache", name_jobs(views), 3))
    assert [(lane.job, lane.start_s, lane.status) for lane in lanes] == [
        ("job 7", 0.0, "finished"),
        ("job 8", 100.0, "finished"),
        ("over", 200.0, "finished"),
    ]


def test_hits_by_place_split_the_hit_rate() -> None:
    turns = make_turn(0, 50.0, hits={"gpu": 48, "host": 16}), make_turn(1, 55.0, hits={"gpu": 64, "host": 0})
    figures = summarize_policy(build_run("agentcache", name_jobs([on_engine(make_job("mine", *turns))]), 16))
    assert (figures.token_hit_rate, figures.gpu_hit_rate, figures.host_hit_rate) == (0.64, 0.56, 0.08)
    one = summarize_policy(build_run("agentcache", name_jobs([on_engine(two_turns("mine", 50.0))]), 16))
    assert (one.gpu_hit_rate, one.host_hit_rate) == (None, None)
