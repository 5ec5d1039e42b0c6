"""What a plan says of its first cache: the verdict, and what the cache would have to hold."""

from __future__ import annotations

import pytest

from agentcache.plan.page import tell_pressure, write_headline
from agentcache.plan.settings import Cell, Outcome


def outcome(policy: str, mean_s: float | None, hits: float = 0.4, jobs: int = 50, **caches: int) -> Outcome:
    cell = Cell(policy, 1000, **caches)
    latencies_s = {} if mean_s is None else {f"job {number}": mean_s for number in range(jobs)}
    return Outcome(cell, jobs, mean_s, None, 2.0, hits, 0.8, 0.8, latencies_s=latencies_s, working_set=1_500)


def test_the_headline_is_of_the_first_cache_and_engines() -> None:
    outcomes = [
        outcome("vllm", 4.0),
        outcome("agentcache", 3.0),
        outcome("vllm", 1.0, engines=8),
        outcome("agentcache", 2.0),
    ]
    assert write_headline(outcomes) == (
        "Cache of 1,000 tokens: switch on: jobs −50 % (−50 to −50 by the spread of these jobs, simulator ±14), P99 "
        "first token 0 %, from 50 jobs, agentcache against vllm; pressure 1.5."
    )


def test_the_headline_has_a_sentence_for_each_dram() -> None:
    outcomes = [
        outcome("vllm", 5380.0),
        outcome("agentcache", 5368.0),
        outcome("vllm", 5372.0, cpu_tokens=2000),
        outcome("agentcache", 4377.0, cpu_tokens=2000),
    ]
    headline = write_headline(outcomes)
    assert headline is not None
    first, second = headline.split(" Cache of 1,000 tokens, and 2,000 in the CPU cache: ")
    assert first.startswith("Cache of 1,000 tokens: do not: no gain beyond chance: jobs 0 %")
    assert second.startswith("switch on: jobs −19 %")
    assert second.endswith("; pressure 0.5.")


@pytest.mark.parametrize(
    ("means", "said"),
    [
        ((4.0, 3.0, 2.5), "lru against vllm"),
        ((4.0, 3.0, 3.0), "agentcache against vllm"),
        ((4.0, 4.4, 4.1), "lru against vllm"),
        ((4.0, None, 4.1), "lru against vllm"),
    ],
)
def test_the_lowest_mean_is_compared_with_vllm(means: tuple[float | None, ...], said: str) -> None:
    outcomes = [outcome(policy, mean) for policy, mean in zip(("vllm", "agentcache", "lru"), means, strict=True)]
    for order in (outcomes, outcomes[::-1] if means[1] != means[2] else outcomes):
        assert said in str(write_headline(order))


def test_a_gain_within_the_known_error_is_said_to_be() -> None:
    headline = str(write_headline([outcome("vllm", 4.0), outcome("agentcache", 3.6)]))
    assert headline.startswith("Cache of 1,000 tokens: perhaps: jobs −10 %")
    assert headline.endswith("The simulator may be off by more: replay the jobs on a GPU.")


@pytest.mark.parametrize(("hits", "opening"), [(0.7996, "do not: everything fits"), (0.799, "do not: no gain")])
def test_what_vllm_hits_tells_whether_everything_fits(hits: float, opening: str) -> None:
    headline = str(write_headline([outcome("vllm", 4.0, hits), outcome("agentcache", 4.0, 0.7)]))
    assert headline.startswith(f"Cache of 1,000 tokens: {opening}")


def test_without_a_mean_there_is_no_headline() -> None:
    assert write_headline([]) is None
    assert write_headline([outcome("vllm", None), outcome("agentcache", 1.0)]) is None
    assert tell_pressure([]) is None
    assert tell_pressure([outcome("vllm", None)]) is None


def test_a_policy_alone_is_compared_with_none() -> None:
    assert write_headline([outcome("vllm", 4.0)]) is None
    assert write_headline([outcome("vllm", 4.0), outcome("agentcache", None)]) is None


def test_what_a_larger_cache_would_do_is_told_of_vllm() -> None:
    outcomes = [
        outcome("agentcache", 3.0),
        outcome("vllm", 4.0),
        outcome("vllm", 2.5, cpu_tokens=2000),
        outcome("vllm", 1.0, engines=2),
    ]
    assert tell_pressure(outcomes) == (
        "The contexts of all jobs at once came to 1,500 tokens, the caches hold 1,000. A CPU cache of about 2,100 "
        "tokens would do (1.4 times these contexts, as others measured). vllm hits 40.0 % of the prompt tokens, at "
        "most 80.0 % can hit, and with 2,000 tokens of CPU cache its mean job takes 2.50 s instead of 4.00 s."
    )
