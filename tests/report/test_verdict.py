"""Every way in which a comparison, or a server alone, is judged."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import mean
from typing import Any

import pytest

from agentcache.report.verdict import (
    LEAST_JOBS,
    Comparison,
    find_change,
    judge,
    judge_server,
    tell_capacity,
)

Pairs = list[tuple[float, float]]
LOSING = Comparison(base="vllm", policy="agentcache", latencies_s=[], ttft_p99_s=(2.0, 2.24), fits=False, pressure=1.87)
FITTING = replace(LOSING, fits=True, pressure=0.42)


def make_pairs(change: float, spread: float, jobs: int = 412) -> Pairs:
    """Jobs of some 20 s under the base; under the policy each group in a row changes by `spread` more, or less."""
    groups = [change + spread * (-1) ** place for place in range(10)]
    return [(20.0 + job % 7, (20.0 + job % 7) * (1 + groups[job * 10 // jobs])) for job in range(jobs)]


@pytest.mark.parametrize(
    ("found", "pairs", "verdict"),
    [
        (
            LOSING,
            make_pairs(-0.31, 0.05),
            "Switch on: jobs −31 % (−35 to −27 by the spread of these jobs), P99 first token +12 %, from 412 jobs, "
            "agentcache against vllm; pressure 1.9.",
        ),
        (
            replace(LOSING, simulated=True),
            make_pairs(-0.31, 0.05),
            "Switch on: jobs −31 % (−35 to −27 by the spread of these jobs, simulator ±14), P99 first token +12 %, "
            "from 412 jobs, agentcache against vllm; pressure 1.9.",
        ),
        (
            replace(LOSING, ttft_p99_s=(1.0, 2.31), pressure=None),
            make_pairs(-0.25, 0.1, 44),
            "Weigh it: jobs −25 % (−30 to −20 by the spread of these jobs), but P99 first token 2.31 times, from 44 "
            "jobs, agentcache against vllm.",
        ),
        (
            FITTING,
            make_pairs(-0.01, 0.01),
            "Do not: everything fits: jobs −1 % (−2 to 0 by the spread of these jobs), P99 first token +12 %, from 412 "
            "jobs, agentcache against vllm; pressure 0.4.",
        ),
        (
            replace(FITTING, ttft_p99_s=(None, 1.0), pressure=0.01, simulated=True),
            make_pairs(-0.1, 0.01),
            "Do not: everything fits: jobs −10 % (−11 to −9 by the spread of these jobs, simulator ±14), P99 first "
            "token not known, from 412 jobs, agentcache against vllm; pressure below 0.1.",
        ),
        (
            LOSING,
            make_pairs(-0.02, 0.05),
            "Do not: no gain beyond chance: jobs −2 % (−6 to +2 by the spread of these jobs), P99 first token +12 %, "
            "from 412 jobs, agentcache against vllm; pressure 1.9.",
        ),
        (
            LOSING,
            make_pairs(0.09, 0.02),
            "Do not: jobs end later: jobs +9 % (+8 to +10 by the spread of these jobs), P99 first token +12 %, from "
            "412 jobs, agentcache against vllm; pressure 1.9.",
        ),
        (
            replace(LOSING, simulated=True),
            make_pairs(-0.1, 0.02),
            "Perhaps: jobs −10 % (−11 to −9 by the spread of these jobs, simulator ±14), P99 first token +12 %, from "
            "412 jobs, agentcache against vllm; pressure 1.9. The simulator may be off by more: "
            "replay the jobs on a GPU.",
        ),
        (
            LOSING,
            make_pairs(-0.1, 0.25, 50),
            "Too few jobs: jobs −10 % (−29 to +9 by the spread of these jobs), P99 first token +12 %, from 50 jobs, "
            "agentcache against vllm; pressure 1.9. About 180 would tell.",
        ),
        (
            LOSING,
            make_pairs(-0.5, 0.0, 39),
            "Too few jobs: 39 under vllm and agentcache, and 40 are the least that tell; pressure 1.9.",
        ),
        (
            FITTING,
            make_pairs(0.0, 0.0, 10),
            "Too few jobs: 10 under vllm and agentcache, and 40 are the least that tell; everything fits; pressure "
            "0.4.",
        ),
    ],
)
def test_every_outcome_of_a_comparison_has_a_sentence(found: Comparison, pairs: Pairs, verdict: str) -> None:
    assert judge(replace(found, latencies_s=pairs)) == verdict


@pytest.mark.parametrize(
    ("change", "opening"), [(-0.04, "Do not: no gain"), (-0.06, "Switch on"), (0.04, "Do not: no gain")]
)
def test_a_change_that_two_runs_have_is_no_gain(change: float, opening: str) -> None:
    assert judge(replace(LOSING, latencies_s=make_pairs(change, 0.001))).startswith(opening)


@pytest.mark.parametrize(("ratio", "opening"), [(1.5, "Switch on"), (1.51, "Weigh it"), (0.5, "Switch on")])
def test_first_tokens_that_come_much_later_are_weighed(ratio: float, opening: str) -> None:
    assert judge(replace(LOSING, latencies_s=make_pairs(-0.3, 0.0), ttft_p99_s=(1.0, ratio))).startswith(opening)


def test_the_interval_holds_the_mean_as_often_as_it_says() -> None:
    rng, held = random.Random(1), 0
    for _ in range(400):
        pairs = [(base, base * rng.gauss(0.8, 0.3)) for base in (rng.lognormvariate(3.0, 0.5) for _ in range(80))]
        change, half = find_change(pairs)
        held += abs(change + 0.2) < half
    assert 0.92 < held / 400 < 0.98


def test_jobs_that_are_late_together_widen_the_interval() -> None:
    """Drawn apart from each other the same changes leave groups alike."""
    changes = [0.6] * 40 + [1.0] * 40
    together = find_change([(10.0, 10.0 * each) for each in changes])
    random.Random(0).shuffle(changes)
    apart = find_change([(10.0, 10.0 * each) for each in changes])
    assert together[0] == pytest.approx(apart[0]) == pytest.approx(mean(changes) - 1)
    assert together[1] > 1.5 * apart[1]


def make_engine(
    *, policy: str = "observe", jobs: int = 90, prompt: int = 10_000, evicted: int = 50, regained: int | None = 0
) -> dict[str, Any]:
    """An engine with room for 1,600 tokens, as `GET /agentcache/state` tells of it."""
    counts = {"prompt_tokens": prompt, "missed_tokens": {"evicted": evicted, "new": 900}}
    return {
        "policy": policy,
        "runtime": {"jobs": 20, "jobs_ended": {"job over": jobs - 20}, **counts},
        "blocks": {"total": 100, "tokens_per_block": 16},
        "comparison": None
        if regained is None
        else {"prompt_tokens": 20_000, "reused_tokens": 9_000, "lru_tokens": 9_000 - 2 * regained},
    }


AGAIN = "0.5 % of the prompt tokens were evicted and computed again; pressure 0.4"


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, f"Do not switch on: everything fits; {AGAIN}."),
        ({"policy": "agentcache"}, f"It may be off: everything fits; {AGAIN}."),
        (
            {"policy": "agentcache", "regained": 2_400},
            f"Keep it on: 24.0 % of the prompt tokens were cached that LRU would have lost; {AGAIN}.",
        ),
        (
            {"evicted": 1_230},
            "Worth a plan: 12.3 % of the prompt tokens were evicted and computed again; pressure 0.4: serve with "
            "--record FILE, then agentcache plan FILE.",
        ),
        (
            {"policy": "agentcache", "regained": None},
            f"Worth a plan: {AGAIN}: serve with --record FILE, then agentcache plan FILE.",
        ),
        ({"jobs": LEAST_JOBS - 1}, "Too few jobs: 39 so far, and 40 are the least that tell; pressure 0.4."),
        ({"prompt": 0}, None),
    ],
)
def test_every_outcome_of_a_server_has_a_sentence(changes: dict[str, Any], verdict: str | None) -> None:
    assert judge_server([make_engine(**changes)], contexts=672) == verdict


def test_engines_of_a_server_are_added_up() -> None:
    few, tiered = make_engine(jobs=20), {**make_engine(jobs=20, evicted=350), "tier": {"total": 200}}
    told = judge_server([few, tiered], contexts=6_400)
    assert told is not None
    assert told.startswith("Worth a plan: 2.0 % of the prompt tokens were evicted and computed again; pressure 1.0:")
    assert judge_server([{**few, "runtime": None}], contexts=0) is None


def test_more_than_fits_is_told_with_what_would_hold_it() -> None:
    assert tell_capacity(100, 200) == "The contexts of all jobs at once came to 100 tokens, the caches hold 200."
    assert tell_capacity(1_234_567, 500_000).endswith(
        "A CPU cache of about 1,700,000 tokens would do (1.4 times these contexts, as others measured)."
    )
