"""Which policies of a report are compared, and by what."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_run import make_events, make_job, make_request, write_run

from agentcache.report.builder import read_report
from agentcache.report.content import headline
from agentcache.report.events import Event, PolicyEvent
from agentcache.report.policy_run import find_working_set
from agentcache.report.table import build_rows, caption


def make_jobs(policy: str, latency_s: float, *, jobs: int = 50, again: int = 0) -> list[Event]:
    """Jobs of two turns that follow one another; the second computes `again` tokens anew."""
    events: list[Event] = []
    for number in range(jobs):
        job, start_s = f"job {number}", 100.0 * number
        events.append(make_request(policy, job, 0, start_s, 1.0, prompt_tokens=1_000))
        turn = {"prompt_tokens": 1_200, "reusable_tokens": 1_000, "cached_tokens": 1_000 - again}
        events.append(make_request(policy, job, 1, start_s + 2.0, 1.0, **turn))
        events.append(make_job(policy, job, start_s, start_s + latency_s))
    return [*events, PolicyEvent(policy=policy, cache_tokens=2_400)]


def verdict_of(folder: Path, *events: list[Event], **changes: object) -> str:
    write_run(folder, [each for policy in events for each in policy], **changes)
    verdict = read_report([folder]).summary.verdict
    assert verdict is not None
    return verdict


@pytest.mark.parametrize(
    "order", [("agentcache", "vllm"), ("lru", "agentcache", "vllm"), ("vllm", "agentcache", "lru")]
)
def test_agentcache_is_compared_with_vllm_wherever_they_stand(tmp_path: Path, order: tuple[str, ...]) -> None:
    latencies_s = {"vllm": 20.0, "agentcache": 10.0, "lru": 40.0}
    verdict = verdict_of(tmp_path / "run", *(make_jobs(name, latencies_s[name], again=500) for name in order))
    assert verdict == (
        "Switch on: jobs −50 % (−50 to −50 by the spread of these jobs), P99 first token 0 %, from 50 jobs, agentcache "
        "against vllm; pressure 0.5."
    )
    report = read_report([tmp_path / "run"])
    assert next(iter(report.policies)) == "vllm"
    assert "ratio to vllm" in " ".join(caption(list(report.policies)))
    assert build_rows(report.summary.policies)[0].cells[0].ratio == ""


def test_without_vllm_the_last_is_compared_with_the_first(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path / "run", make_jobs("lru", 20.0, again=500), make_jobs("asymcache", 30.0))
    assert verdict.startswith("Do not: jobs end later: jobs +50 %")
    assert "asymcache against lru" in verdict


def test_what_fits_is_judged_by_what_the_base_computed_again(tmp_path: Path) -> None:
    fits = verdict_of(tmp_path / "fits", make_jobs("vllm", 20.0), make_jobs("agentcache", 20.0, again=500))
    assert fits.startswith("Do not: everything fits: jobs 0 %")
    lost = verdict_of(tmp_path / "lost", make_jobs("vllm", 20.0, again=500), make_jobs("agentcache", 20.0))
    assert lost.startswith("Do not: no gain beyond chance: jobs 0 %")


def test_a_simulated_run_has_the_simulators_error(tmp_path: Path) -> None:
    events = make_jobs("vllm", 20.0, again=500), make_jobs("agentcache", 10.0)
    assert "simulator ±14" in verdict_of(tmp_path / "run", *events, device="simulated NVIDIA H200")
    assert "simulator" not in verdict_of(tmp_path / "gpu", *events, device="NVIDIA H200")


def test_only_jobs_that_finished_under_both_are_compared(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path / "run", make_jobs("vllm", 20.0), make_jobs("agentcache", 10.0, jobs=30))
    assert verdict.startswith("Too few jobs: 30 under vllm and agentcache")


def test_stock_vllm_of_any_run_comes_first(tmp_path: Path) -> None:
    mine = write_run(tmp_path / "mine", make_jobs("agentcache", 10.0))
    theirs = write_run(tmp_path / "theirs", make_jobs("vllm", 20.0, again=500))
    report = read_report([mine, theirs])
    assert list(report.policies) == ["theirs: vllm", "mine: agentcache"]
    assert str(headline(report)).startswith("Switch on: jobs −50 %")
    other = write_run(tmp_path / "other", make_jobs("vllm", 20.0), seed=8)
    assert headline(read_report([mine, other])) is None, "not the same jobs"


@pytest.mark.parametrize(
    "events", [[], make_events("vllm", 3), [*make_events("vllm", 50)[:1], *make_events("lru", 50)]]
)
def test_nothing_is_said_where_there_is_no_comparison(tmp_path: Path, events: list[Event]) -> None:
    assert read_report([write_run(tmp_path / "run", events)]).summary.verdict is None


@pytest.mark.parametrize(
    ("settings", "hits", "pressure"),
    [
        ({"cpu_tokens": 3_600}, {"gpu": 1}, "; pressure 0.2."),
        ({"cpu_tokens": 1_800, "replicas": 2}, {"gpu": 1}, "; pressure 0.2."),
        ({}, {"gpu": 1}, "agentcache against vllm."),
    ],
)
def test_pressure_is_over_all_caches_if_their_size_is_known(
    tmp_path: Path, settings: dict[str, int], hits: dict[str, int], pressure: str
) -> None:
    *events, end = make_jobs("vllm", 20.0, again=500)
    base = [*events, end.model_copy(update={"hit_tokens": hits})]
    assert verdict_of(tmp_path / "run", base, make_jobs("agentcache", 10.0), settings=settings).endswith(pressure)


def test_the_working_set_is_of_jobs_under_way_at_once() -> None:
    requests = [
        make_request("vllm", "a", 0, 0.0, 1.0, prompt_tokens=100, output_tokens=10),
        make_request("vllm", "b", 0, 1.0, 1.0, prompt_tokens=200),
        make_request("vllm", "a", 1, 5.0, 1.0, prompt_tokens=150),
        make_request("vllm", "c", 0, 7.0, 1.0, prompt_tokens=300),
    ]
    ends = [make_job("vllm", "a", 0.0, 6.0), make_job("vllm", "b", 1.0, 2.0)]
    assert find_working_set(requests, ends) == 310, "a's first turn and b; b is over when a grows"
    assert find_working_set(requests, []) == 650
    assert find_working_set([], []) == 0


def test_the_working_set_has_each_agent_up_to_its_last_reply() -> None:
    requests = [
        make_request("vllm", "a", 0, 0.0, 1.0, prompt_tokens=100),
        make_request("vllm", "a", 0, 1.0, 1.0, prompt_tokens=40, thread="child"),
        make_request("vllm", "a", 1, 2.5, 1.0, prompt_tokens=60, thread="child"),
        make_request("vllm", "a", 1, 5.0, 1.0, prompt_tokens=130),
    ]
    assert find_working_set(requests, [make_job("vllm", "a", 0.0, 6.0)]) == 160
    requests[3] = requests[3].model_copy(update={"sent_s": 3.0})
    assert find_working_set(requests, [make_job("vllm", "a", 0.0, 6.0)]) == 190, "while the child answers"
