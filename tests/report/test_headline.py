"""The sentence that a report begins with."""

from __future__ import annotations

import pytest
from made_summaries import EMPTY

from agentcache.report.summary import Distribution, PolicySummary
from agentcache.report.table import write_headline


def make(mean: float | None, recomputed: int | None = None) -> PolicySummary:
    return EMPTY.model_copy(update={"job_latency_s": Distribution(mean=mean), "recomputed_tokens": recomputed})


@pytest.mark.parametrize(
    ("base", "ours", "sentence"),
    [
        (
            make(24.0, 90_000),
            make(18.0, 30_000),
            "agentcache finished the mean job 25 % sooner than vllm (18.0 s against 24.0 s): "
            "it recomputed 30,000 tokens instead of 90,000.",
        ),
        (make(20.0), make(21.0), "agentcache finished the mean job 5 % later than vllm (21.0 s against 20.0 s)."),
        (make(20.0), make(20.1), "agentcache finished the mean job as fast as vllm (20.1 s against 20.0 s)."),
        (
            make(20.0, 0),
            make(20.0, 0),
            "agentcache finished the mean job as fast as vllm (20.0 s against 20.0 s): "
            "the cache was large enough for all jobs, so no policy could gain.",
        ),
        (
            make(20.0, 0),
            make(22.0, 1_500),
            "agentcache finished the mean job 10 % later than vllm (22.0 s against 20.0 s): "
            "it recomputed 1,500 tokens instead of 0.",
        ),
    ],
)
def test_gains_losses_and_ties_are_told(base: PolicySummary, ours: PolicySummary, sentence: str) -> None:
    assert write_headline({"vllm": base, "agentcache": ours}) == sentence


def test_agentcache_is_compared_wherever_it_stands() -> None:
    policies = {"vllm": make(20.0), "agentcache": make(10.0), "lru": make(19.0)}
    assert str(write_headline(policies)).startswith("agentcache finished the mean job 50 % sooner than vllm")


def test_without_agentcache_the_last_policy_is_compared() -> None:
    policies = {"agentcache": make(10.0), "lru": make(20.0), "vllm": make(20.0)}
    assert str(write_headline(policies)).startswith("vllm finished the mean job 100 % later than agentcache")


@pytest.mark.parametrize("policies", [{}, {"vllm": make(20.0)}, {"vllm": make(None), "agentcache": make(20.0)}])
def test_nothing_is_said_where_there_is_no_comparison(policies: dict[str, PolicySummary]) -> None:
    assert write_headline(policies) is None


def test_a_policy_whose_jobs_all_failed_has_no_headline() -> None:
    assert write_headline({"vllm": make(20.0), "agentcache": make(None)}) is None
