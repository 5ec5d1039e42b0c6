"""The figures of summary.json, against values worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_run import make_events, make_job, make_record, make_request, make_tool_call

from agentcache.report.events import Event, PolicyEvent
from agentcache.report.policy_run import group_by_policy
from agentcache.report.summary import Distribution, PolicySummary, summarize

SUMMARY_PAGE = Path(__file__).parents[2] / "docs" / "summary.md"


def summarize_one(events: Iterable[Event]) -> PolicySummary:
    return summarize(make_record(), group_by_policy(events)).policies["lru"]


def small_run() -> list[Event]:
    """Two finished jobs (4 s and 9 s), one failed, with 16-token blocks."""
    return [
        make_request(
            "lru", "a", 0, 1.0, 1.0, reply_s=1.0, prompt_tokens=40, output_tokens=11, queue_s=0.25, prefill_s=0.75
        ),
        make_tool_call("lru", "a", 0, 3.0, 0.5),
        make_request(
            "lru",
            "a",
            1,
            3.5,
            0.5,
            reply_s=1.0,
            prompt_tokens=60,
            output_tokens=1,
            cached_tokens=24,
            reusable_tokens=48,
        ),
        make_job("lru", "a", 1.0, 5.0, turns=2),
        make_request("lru", "c", 0, 2.0, 4.0, prompt_tokens=0, reusable_tokens=64, error="refused", retries=2),
        make_job("lru", "c", 2.0, 6.0, status="failed", error="refused"),
        make_request(
            "lru", "b", 0, 1.0, 3.0, reply_s=6.0, prompt_tokens=100, output_tokens=13, diverged_at=7, retries=1
        ),
        make_job("lru", "b", 1.0, 10.0),
        PolicyEvent(policy="lru", block_size=16, preemptions=4, engine_startup_s=12.5),
    ]


def test_job_latency_is_of_finished_jobs_by_linear_percentiles() -> None:
    latency = summarize_one(small_run()).job_latency_s
    expected = {"mean": 6.5, "p50": 6.5, "p90": 8.5, "p95": 8.75, "p99": 8.95, "max": 9.0}
    assert latency.model_dump() == pytest.approx(expected)


def test_ttft_and_tpot_are_over_answered_requests() -> None:
    figures = summarize_one(small_run())
    assert figures.ttft_s.mean == pytest.approx((1.0 + 0.5 + 3.0) / 3)
    assert figures.ttft_s.max == 3.0
    # 1 s for 10 tokens, 6 s for 12; the reply of one token has no TPOT.
    assert figures.tpot_s.mean == pytest.approx((0.1 + 0.5) / 2)


def test_waits_are_means_without_short_ones() -> None:
    end = PolicyEvent(policy="lru", waits_s={"pins": 6.0, "fill": 0.02})
    assert summarize_one([*small_run()[:-1], end]).waits_s == {"pins": 2.0}
    assert summarize_one(small_run()).waits_s is None


def test_tenants_are_compared_by_their_job_latencies() -> None:
    jobs = [
        make_job("lru", name, 0.0, seconds, tenant=name[0]) for name, seconds in (("a1", 2.0), ("a2", 4.0), ("b", 1.0))
    ]
    tenants = summarize_one([*jobs, make_job("lru", "no tenant", 0.0, 9.0)]).tenants
    assert tenants is not None
    assert tenants.job_latency_s == {"a": 3.0, "b": 1.0}
    assert tenants.jain_index == pytest.approx((3 + 1) ** 2 / (2 * (9 + 1)))
    assert summarize_one(small_run()).tenants is None


def test_hit_rates() -> None:
    figures = summarize_one(small_run())
    assert figures.token_hit_rate == pytest.approx(24 / 200)
    # Whole blocks of 16: one of 2 + 3 + 6.
    assert figures.block_hit_rate == pytest.approx(1 / 11)
    assert figures.request_hit_rate == pytest.approx(1 / 3)


def test_counts_and_times_of_the_run() -> None:
    figures = summarize_one(small_run())
    assert (figures.jobs, figures.finished, figures.failed, figures.interrupted, figures.turns) == (3, 2, 1, 0, 3)
    assert (figures.retries, figures.diverged_prompts, figures.preemptions) == (3, 1, 4)
    # 48 reusable less 24 cached; what the failed request had to recompute is not known.
    assert figures.recomputed_tokens == 24
    assert figures.makespan_s == 9.0
    assert figures.engine_startup_s == 12.5
    assert figures.queue_s.max == 0.25
    assert figures.tool_s.mean == 0.5


def test_interrupted_run_keeps_what_was_measured() -> None:
    broken = [event for event in small_run() if not isinstance(event, PolicyEvent)][:3]
    figures = summarize_one(broken)
    assert figures.jobs == 0
    assert figures.job_latency_s == Distribution()
    assert figures.ttft_s.mean == pytest.approx(0.75)
    assert figures.token_hit_rate == pytest.approx(24 / 100)
    assert (figures.block_hit_rate, figures.preemptions, figures.engine_startup_s) == (None, None, None)
    assert figures.makespan_s == 4.0


def test_interrupted_jobs_are_counted_apart_and_have_no_latency() -> None:
    figures = summarize_one([*small_run(), make_job("lru", "d", 0.0, 500.0, status="interrupted")])
    assert (figures.jobs, figures.finished, figures.interrupted) == (4, 2, 1)
    assert figures.job_latency_s.max == 9.0


def test_policy_without_requests_has_no_data() -> None:
    figures = summarize_one([PolicyEvent(policy="lru", block_size=16)])
    assert figures.ttft_s == Distribution()
    for name in ("token_hit_rate", "block_hit_rate", "request_hit_rate", "recomputed_tokens", "makespan_s"):
        assert getattr(figures, name) is None


def test_prompts_shorter_than_a_block_have_no_block_hit_rate() -> None:
    request = make_request("lru", "a", 0, 0.0, 1.0, prompt_tokens=9)
    assert summarize_one([request, PolicyEvent(policy="lru", block_size=16)]).block_hit_rate is None


def test_policies_stand_in_the_order_of_their_first_event() -> None:
    events = [*make_events("vllm", 2), *make_events("agentcache", 2)]
    assert list(summarize(make_record(), group_by_policy(events)).policies) == ["vllm", "agentcache"]


def test_reference_page_names_every_key() -> None:
    document = json.loads(summarize(make_record(), group_by_policy(make_events("lru", 2))).model_dump_json())
    page = SUMMARY_PAGE.read_text(encoding="utf-8")
    figures = document["policies"]["lru"]
    keys = [*figures, *figures["job_latency_s"], *document["run"], *document]
    assert [key for key in keys if f"`{key}`" not in page] == []


@given(seed=st.integers(0, 10_000), jobs=st.integers(1, 12), failing=st.floats(0, 1), hit=st.floats(0, 1))
def test_figures_are_in_order_and_rates_are_shares(seed: int, jobs: int, failing: float, hit: float) -> None:
    figures = summarize_one(make_events("lru", jobs, seed=seed, failing=failing, hit=hit))
    for spread in (figures.job_latency_s, figures.ttft_s, figures.tpot_s, figures.queue_s, figures.tool_s):
        ordered = [spread.p50, spread.p90, spread.p95, spread.p99, spread.max]
        known = [value for value in ordered if value is not None]
        assert known == sorted(known)
        assert len(known) == (0 if spread.mean is None else 5)
    for rate in (figures.token_hit_rate, figures.block_hit_rate, figures.request_hit_rate):
        assert rate is not None
        assert 0 <= rate <= 1
    assert figures.finished + figures.failed == figures.jobs == jobs
    # No job outlasts the run.
    assert (figures.job_latency_s.max or 0.0) <= (figures.makespan_s or 0.0) + 1e-9


def test_a_server_that_hides_cached_tokens_has_no_hit_rate() -> None:
    figures = summarize_one([make_request("lru", "a", 0, 0.0, 1.0, prompt_tokens=100, cached_tokens=None)])
    assert figures.turns == 1
    assert (figures.token_hit_rate, figures.request_hit_rate, figures.recomputed_tokens) == (None, None, None)


def test_hits_of_two_caches_split_the_hit_rate() -> None:
    *events, end = small_run()
    figures = summarize_one([*events, end.model_copy(update={"hit_tokens": {"gpu": 6, "host": 18}})])
    assert figures.token_hit_rate == pytest.approx(24 / 200)
    assert (figures.gpu_hit_rate, figures.host_hit_rate) == (pytest.approx(6 / 200), pytest.approx(18 / 200))
    assert figures.disk_hit_rate is None
    hits = {"gpu": 6, "host": 8, "disk": 6, "elsewhere": 4}
    figures = summarize_one([*events, end.model_copy(update={"hit_tokens": hits})])
    rates = figures.gpu_hit_rate, figures.host_hit_rate, figures.disk_hit_rate
    assert rates == (pytest.approx(6 / 200), pytest.approx(12 / 200), pytest.approx(6 / 200))
    plain = summarize_one(small_run())
    assert (plain.gpu_hit_rate, plain.host_hit_rate) == (None, None)
