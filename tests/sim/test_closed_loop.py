from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from made_command import make_settings
from made_recordings import make_session, write_sessions
from shown_page import read_page

from agentcache.report.content import HTML_FILE
from agentcache.report.events import MEASURED, read_events, read_run_record
from agentcache.report.policy_run import PolicyRun, group_by_policy
from agentcache.report.summary import Summary
from agentcache.sim.command import simulate

pytestmark = pytest.mark.usefixtures("without_plots")

LANES = 3


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    turns = [[tuple(range(1, 20 + 10 * turn)) for turn in range(12 + number)] for number in range(5)]
    made = (make_session(number, *prompts, output=60, wait_s=2.0 * number) for number, prompts in enumerate(turns))
    return write_sessions(tmp_path_factory.mktemp("recorded") / "sessions.jsonl", made)


def loop(sessions: Path, out: Path, **changes: object) -> tuple[PolicyRun, Summary]:
    given = {"kv_tokens": 40_000, "concurrency": LANES, "duration_s": 60.0, "warm_up": 2, **changes}
    status, summary = simulate(make_settings(out, workload=f"recording:{sessions}", **given))
    assert status == 0
    return group_by_policy(read_events(out))["lru"], summary


@pytest.fixture(scope="module")
def measured(
    sessions: Path,
    tmp_path_factory: pytest.TempPathFactory,
    without_plots: None,  # noqa: ARG001
) -> tuple[PolicyRun, Summary, Path]:
    out = tmp_path_factory.mktemp("loop") / "out"
    return *loop(sessions, out), out


def test_lanes_are_busy_with_one_session_each(measured: tuple[PolicyRun, Summary, Path]) -> None:
    run = measured[0]
    assert run.end is not None
    assert run.end.window_s is not None
    begin_s, end_s = run.end.window_s
    assert end_s - begin_s == pytest.approx(60.0)
    assert len([job for job in run.jobs if job.status == "finished"]) > LANES
    assert [job.error for job in run.jobs if job.status == "interrupted"] == [MEASURED] * LANES
    for now_s in (begin_s, (begin_s + end_s) / 2, end_s):
        assert sum(job.started_s <= now_s <= job.finished_s for job in run.jobs) == LANES
    assert max(request.finished_s for request in run.requests) <= end_s


def test_figures_leave_the_warm_up_out(measured: tuple[PolicyRun, Summary, Path]) -> None:
    run, summary, _ = measured
    assert run.end is not None
    assert run.end.window_s is not None
    figures = summary.policies["lru"]
    inside = [request for request in run.requests if request.finished_s >= run.end.window_s[0]]
    assert 0 < figures.turns == len(inside) < len(run.requests)
    throughput = figures.throughput
    assert throughput is not None
    assert throughput.input_tok_s == pytest.approx(sum(request.prompt_tokens for request in inside) / 60)
    assert throughput.output_tok_s == pytest.approx(sum(request.output_tokens for request in inside) / 60)
    assert throughput.total_tok_s == pytest.approx(throughput.input_tok_s + throughput.output_tok_s)
    assert (throughput.interactivity_p90 or 0) < (throughput.interactivity_p50 or 0)
    assert (throughput.normalized_p50 or 0) < (throughput.interactivity_p50 or 0)


def test_turns_and_jobs_are_counted_by_their_ends(measured: tuple[PolicyRun, Summary, Path]) -> None:
    run, summary, out = measured
    assert run.end is not None
    assert run.end.window_s is not None
    begin_s, end_s = run.end.window_s
    throughput = summary.policies["lru"].throughput
    assert throughput is not None
    assert throughput.turns_per_min == pytest.approx(sum(begin_s <= each.finished_s <= end_s for each in run.requests))
    ended = [job for job in run.jobs if job.status == "finished" and begin_s <= job.finished_s]
    assert any(job.started_s < begin_s for job in ended)
    assert throughput.jobs_ended == len(ended)
    assert throughput.gpu_s_per_job == pytest.approx(60 / len(ended))
    assert "| Turns a minute ↑ |" in read_page(out / HTML_FILE)


def test_a_rollout_plays_each_session_by_its_samples(sessions: Path, tmp_path: Path) -> None:
    run, summary = loop(sessions, tmp_path, rollout=3)
    sessions_of = [job.job.partition("-sample-")[0] for job in run.jobs]
    assert sessions_of.count(sessions_of[0]) == 3
    assert summary.policies["lru"].throughput is not None
    assert any("3 samples of each session" in note for note in read_run_record(tmp_path).notes)


def test_hits_are_shown_beside_an_infinite_cache(sessions: Path, tmp_path: Path) -> None:
    rates = {}
    for tokens in (20_000, 2_000_000):
        _, summary = loop(sessions, tmp_path / str(tokens), kv_tokens=tokens)
        figures = summary.policies["lru"]
        assert figures.throughput is not None
        rates[tokens] = (figures.token_hit_rate or 0.0, figures.throughput.infinite_hit_rate or 0.0)
    assert rates[20_000][0] < rates[20_000][1]
    assert rates[2_000_000][0] == pytest.approx(rates[2_000_000][1], abs=0.002)


def test_a_report_says_lanes_and_no_job_latency(measured: tuple[PolicyRun, Summary, Path]) -> None:
    _, summary, out = measured
    text = read_page(out / HTML_FILE)
    assert f"A closed loop of {LANES} lanes" in text
    assert "Throughput per GPU (tok/s)" in text
    assert "| Job latency" not in text
    assert "interrupted and" not in text
    assert MEASURED not in text
    assert summary.policies["lru"].job_latency_s.mean is None
    assert (read_run_record(out).lanes, read_run_record(out).jobs) == (LANES, LANES)


def test_where_all_wait_the_next_request_comes_in_10_s(tmp_path: Path) -> None:
    session = make_session(1, *(tuple(range(1, 9 + turn)) for turn in range(40)), wait_s=200.0)
    run, _ = loop(write_sessions(tmp_path / "r.jsonl", [session]), tmp_path / "out", concurrency=1)
    times = sorted(request.sent_s for request in run.requests)
    gaps = [after - before for before, after in pairwise(times)]
    assert max(gaps) == pytest.approx(10.0, abs=2.0)
    assert len(run.requests) > 5
