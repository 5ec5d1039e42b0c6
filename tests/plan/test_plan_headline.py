from __future__ import annotations

import pytest

from agentcache.plan.page import write_headline
from agentcache.plan.settings import Cell, Outcome


def outcome(policy: str, mean_s: float | None, hits: float = 0.4, **caches: int) -> Outcome:
    return Outcome(Cell(policy, 1000, **caches), 1, mean_s, None, None, hits, 0.8, 0.8)


def test_the_headline_is_of_the_first_cache_and_engines() -> None:
    headline = write_headline(
        [outcome("vllm", 4.0), outcome("agentcache", 3.0), outcome("vllm", 1.0, engines=8), outcome("agentcache", 2.0)]
    )
    assert headline is not None
    assert headline.startswith("With a cache of 1,000 tokens agentcache is predicted to end the mean job 50 % sooner")
    assert headline.count("With") == 1


def test_the_headline_has_a_sentence_for_each_dram() -> None:
    headline = write_headline(
        [
            outcome("vllm", 5380.0),
            outcome("agentcache", 5368.0),
            outcome("vllm", 5372.0, cpu_tokens=2000),
            outcome("agentcache", 4377.0, cpu_tokens=2000),
        ]
    )
    assert headline == (
        "With a cache of 1,000 tokens all policies are predicted to end the mean job within 0.5 % of each other. "
        "With a cache of 1,000 tokens, and 2,000 in the CPU cache, agentcache is predicted to end the mean job 19 % "
        "sooner than vllm (4,377 s against 5,372 s)."
    )


def test_a_gain_within_the_known_error_is_said_to_be() -> None:
    headline = write_headline([outcome("vllm", 4.0), outcome("agentcache", 3.9)])
    assert headline is not None
    assert headline.endswith("(3.90 s against 4.00 s). That is within the simulator's error.")


@pytest.mark.parametrize(
    ("means", "said"),
    [
        ((4.0, 4.0, 4.0), "all policies are predicted to end the mean job within 0.5 % of each other."),
        ((4.0, 3.99, 4.005), "all policies are predicted to end the mean job within 0.5 % of each other."),
        (
            (4.0, 4.0, 5.0),
            "no policy is predicted to end the mean job sooner than vllm, and lru 25 % later (5.00 s against 4.00 s).",
        ),
        (
            (4.0, 4.4, 4.1),
            "no policy is predicted to end the mean job sooner than vllm, and agentcache 10 % later (4.40 s against "
            "4.00 s). That is within the simulator's error.",
        ),
    ],
)
def test_a_tie_names_the_first_policy_or_none(means: tuple[float, ...], said: str) -> None:
    policies = ("vllm", "agentcache", "lru")
    outcomes = [outcome(policy, mean) for policy, mean in zip(policies, means, strict=False)]
    assert write_headline(outcomes) == f"With a cache of 1,000 tokens {said}"


@pytest.mark.parametrize(("hits", "is_said"), [((0.8, 0.7996), True), ((0.8, 0.799), False)])
def test_a_tie_without_losses_says_why(hits: tuple[float, float], is_said: bool) -> None:
    headline = write_headline([outcome("vllm", 4.0, hits[0]), outcome("agentcache", 4.0, hits[1])])
    assert headline is not None
    assert headline.endswith("of each other: nothing is lost that is wanted again.") == is_said


def test_without_a_mean_there_is_no_headline() -> None:
    assert write_headline([]) is None
    assert write_headline([outcome("vllm", None), outcome("agentcache", 1.0)]) is None


def test_a_policy_alone_is_compared_with_none() -> None:
    assert write_headline([outcome("vllm", 4.0)]) is None
    assert write_headline([outcome("vllm", 4.0), outcome("agentcache", None)]) is None
