import math
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tool_runtime.learning.continuum import ContinuumCode, ContinuumPaper, empirical_hold, exponential_hold
from tool_runtime.learning.durations import Durations, Ended
from tool_runtime.learning.runtime import memoryfulness
from tool_runtime.learning.tool_key import HUMAN, ToolKey
from tool_runtime.learning.ttl import (
    RELEASE,
    GapHistory,
    HazardTtl,
    Hold,
    Situation,
    SurvivalCurve,
    TtlEstimator,
    log_logistic,
)

BASH = ToolKey("bash")


def history_of(curve: SurvivalCurve, key: ToolKey = BASH) -> GapHistory:
    return replace(Durations().history(key), curve=curve)


def exponential(mean_s: float) -> SurvivalCurve:
    times = np.linspace(0.01, 100 * mean_s, 10_000)
    return SurvivalCurve(times, 1 - np.exp(-np.diff(times, prepend=0.0) / mean_s))


def history_with(tool: list[float], others: list[float], key: ToolKey = BASH) -> GapHistory:
    durations = Durations(max_samples=1000, max_pool_samples=1000)
    for name, gaps in ((key, tool), (ToolKey("other"), others)):
        for gap_s in gaps:
            durations.observe(name, gap_s, Ended.RETURNED, 0.0)
    return durations.history(key)


# continuum-code


@pytest.mark.parametrize(("gaps", "ttl_s"), [([], 2.0), ([2.0], 2.0), ([1.0, 3.0], 2.0), ([1.0, 3.1], 0.0)])
def test_the_released_rule_looks_at_the_mean_only(gaps: list[float], ttl_s: float) -> None:
    assert ContinuumCode().decide(Situation(history=history_with(gaps, [50.0]))).ttl_s == ttl_s


def test_the_released_rule_runs_out() -> None:
    history = history_with([], [])
    assert ContinuumCode().decide(Situation(history=history, age_s=0.5)).ttl_s == 1.5
    assert ContinuumCode().decide(Situation(history=history, age_s=2.0)) == RELEASE


@pytest.mark.parametrize("estimator", [ContinuumCode(), ContinuumPaper()])
def test_continuum_keeps_nothing_for_a_human(estimator: TtlEstimator) -> None:
    history = history_with([1.0] * 200, [], HUMAN)
    assert estimator.decide(Situation(history=history, prefill_s=50.0)) == RELEASE


# continuum-paper


@pytest.mark.parametrize(("benefit_s", "ttl_s"), [(0.5, 0.0), (1.0, 0.0), (3.0, 1.10), (10.0, 2.30)])
def test_the_default_stage_solves_an_exponential_of_one_second(benefit_s: float, ttl_s: float) -> None:
    situation = Situation(history=history_with([9.0], []), prefill_s=benefit_s / 2, evicted_wait_s=benefit_s / 2)
    assert ContinuumPaper().decide(situation).ttl_s == pytest.approx(ttl_s, abs=0.005)


def test_stages_change_after_100_samples() -> None:
    def ttl_s(tool: list[float], others: list[float]) -> float:
        return ContinuumPaper().decide(Situation(history=history_with(tool, others), prefill_s=20.0)).ttl_s

    assert ttl_s([5.0] * 100, []) == pytest.approx(math.log(20))
    assert ttl_s([5.0] * 100, [7.0]) == 5.0
    assert ttl_s([], [7.0] * 101) == 7.0
    assert ttl_s([5.0] * 100, [7.0] * 300) == 7.0
    assert ttl_s([5.0] * 101, [7.0] * 300) == 5.0


def test_queueing_counts_by_memoryfulness_but_fully_at_first() -> None:
    history = history_with([5.0] * 101, [])
    queued = Situation(history=history, prefill_s=4.0, evicted_wait_s=10.0)
    assert ContinuumPaper().decide(queued) == RELEASE
    assert ContinuumPaper().decide(replace(queued, memoryfulness=0.2)) == Hold(5.0, 1.0)
    assert ContinuumPaper().decide(replace(queued, memoryfulness=-1.0)) == RELEASE
    cold = replace(queued, history=history_with([], []))
    assert ContinuumPaper().decide(cold).ttl_s == pytest.approx(math.log(14))


def test_the_papers_hold_runs_out() -> None:
    situation = Situation(history=history_with([5.0] * 101, []), prefill_s=20.0)
    assert ContinuumPaper().decide(replace(situation, age_s=2.0)).ttl_s == 3.0
    assert ContinuumPaper().decide(replace(situation, age_s=5.0)) == RELEASE


@given(st.lists(st.floats(0.001, 100), max_size=30), st.floats(-10, 200))
def test_the_empirical_hold_is_the_best_of_all(samples: list[float], benefit_s: float) -> None:
    def value(ttl_s: float) -> float:
        return sum(sample <= ttl_s for sample in samples) / len(samples) * benefit_s - ttl_s

    hold = empirical_hold(np.sort(np.array(samples)), benefit_s)
    assert hold.ttl_s == 0 or hold.ttl_s in samples
    if hold != RELEASE:
        assert hold.value_s == pytest.approx(value(hold.ttl_s), abs=1e-9)
        assert hold.ttl_s < benefit_s
    if samples:
        assert hold.value_s >= max(0.0, *map(value, [*samples, 1.0, 10.0])) - 1e-9


def test_of_equal_holds_the_shortest() -> None:
    assert empirical_hold(np.array([1.0, 2.0]), 2.0) == RELEASE
    assert empirical_hold(np.array([1.0, 3.0]), 4.0) == Hold(1.0, 1.0)
    assert empirical_hold(np.array([2.0, 2.0, 2.0]), 3.0) == Hold(2.0, 1.0)


def test_the_exponential_hold_is_worth_what_it_says() -> None:
    hold = exponential_hold(2.0, 9.0)
    assert hold.value_s == pytest.approx((1 - math.exp(-hold.ttl_s / 2)) * 9 - hold.ttl_s)


@given(st.lists(st.integers(0, 60), max_size=40))
def test_memoryfulness_is_a_correlation(job_turns: list[int]) -> None:
    pairs = [(k, turns - k) for turns in job_turns for k in range(1, turns)]
    eta = memoryfulness(job_turns)
    if len({done for done, _ in pairs}) < 2:
        assert eta == 0
    else:
        assert eta == pytest.approx(-np.corrcoef(np.array(pairs).T)[0, 1])
        assert -1 <= eta <= 1


def test_memoryfulness_of_known_workloads() -> None:
    chance = random.Random(3)
    geometric = [1 + int(math.log(1 - chance.random()) / math.log(0.9)) for _ in range(5000)]
    assert memoryfulness([12] * 5) == 1
    assert memoryfulness(geometric) == pytest.approx(0, abs=0.1)
    assert memoryfulness([]) == memoryfulness([1, 2]) == 0


# ours


def expect_hold(curve: SurvivalCurve, hold_s: float, age_s: float) -> float:
    """E[min(X − age, hold) | X > age]: the area under the curve, step by step."""
    falls = [float(time_s) for time_s in curve.times_s if age_s < time_s < age_s + hold_s]
    area = sum(curve.survival(start) * (end - start) for start, end in pairwise([age_s, *falls, age_s + hold_s]))
    return area / curve.survival(age_s)


@given(st.floats(0, 50), st.floats(0.01, 5), st.floats(0, 60), st.floats(1, 500))
def test_the_hold_is_the_best_of_all(benefit_s: float, price: float, age_s: float, max_ttl_s: float) -> None:
    curve = log_logistic(4.0)
    hold = HazardTtl(max_ttl_s=max_ttl_s, min_chance=0.0).decide(
        Situation(history=history_of(curve), age_s=age_s, loss_s=benefit_s, price=price)
    )

    def value(ttl_s: float) -> float:
        return curve.returned_within(ttl_s, age_s) * benefit_s - price * expect_hold(curve, ttl_s, age_s)

    # At a time: it is asked again when the hold is over.
    assert 0 <= hold.ttl_s <= max_ttl_s
    # A hair longer: from the age on the hold may end a rounding error before the time at which the curve falls.
    assert hold.value_s == pytest.approx(value(hold.ttl_s + 1e-9 * (hold.ttl_s > 0)), abs=1e-6)
    assert hold.value_s >= max(value(max_ttl_s * share) for share in np.linspace(0, 1, 30)) - 1e-6


def test_a_mostly_short_tool_is_held_a_while_then_let_go() -> None:
    history = history_with([0.5] * 90 + [300.0] * 10, [])
    situation = Situation(history=history, loss_s=3.0)
    hold = HazardTtl().decide(situation)
    assert 0.5 <= hold.ttl_s < 10
    assert HazardTtl().decide(replace(situation, age_s=0.3)).ttl_s > 0
    assert HazardTtl().decide(replace(situation, age_s=20.0)) == RELEASE


def test_a_hold_is_charged_only_until_the_return() -> None:
    # An exponential gap's hazard is 1 / mean at any age: hold for ever, or not at all, where the paper's model stops.
    history = history_of(exponential(1.0))
    for age_s in (0.0, 1.0, 5.0):
        worth = Situation(history=history, loss_s=1.1, age_s=age_s)
        assert HazardTtl(max_ttl_s=20.0).decide(worth).ttl_s > 10
        assert HazardTtl(max_ttl_s=20.0).decide(replace(worth, loss_s=0.9)) == RELEASE
    assert exponential_hold(1.0, 1.1).ttl_s < 0.1


def test_a_cache_that_is_not_short_keeps_up_to_the_maximum() -> None:
    situation = Situation(history=history_with([100.0] * 50, []), loss_s=1.0, price=0.0, age_s=10.0)
    hold = HazardTtl(max_ttl_s=100.0).decide(situation)
    assert hold.ttl_s == 100.0
    assert 0.8 < hold.value_s < 1
    assert HazardTtl(max_ttl_s=100.0).decide(replace(situation, loss_s=0.0)) == RELEASE


@pytest.mark.parametrize("price", [0.0, 1e-6])
def test_a_hold_that_mostly_ends_in_vain_is_none(price: float) -> None:
    # A fifth returns within a second, the rest in a minute.
    history = history_with([1.0] * 200 + [60.0] * 800, [])
    situation = Situation(history=history, loss_s=100.0, price=price)
    assert HazardTtl().decide(situation) == RELEASE
    assert HazardTtl(min_chance=0.15).decide(situation).ttl_s >= 1.0
    # The chance is that of the time for which a hold may last at once.
    assert HazardTtl(max_ttl_s=70.0).decide(situation).ttl_s > 50.0
    # A minute later it is about to return.
    assert HazardTtl().decide(replace(situation, age_s=58.0)).ttl_s > 0.0
    assert HazardTtl(min_chance=1.0).decide(situation) == RELEASE


def test_the_least_chance_changes_nothing_but_whether() -> None:
    situation = Situation(history=history_with([1.0] * 90 + [60.0] * 10, []), loss_s=3.0, price=0.5)
    assert HazardTtl(min_chance=0.8).decide(situation) == HazardTtl(min_chance=0.0).decide(situation) != RELEASE


@given(st.floats(0.1, 20), st.floats(0.05, 2), st.floats(1, 3))
def test_a_dearer_memory_never_makes_a_hold_longer(loss_s: float, price: float, factor: float) -> None:
    situation = Situation(history=history_of(log_logistic(3.0)), loss_s=loss_s, price=price)
    cheap, dear = HazardTtl().decide(situation), HazardTtl().decide(replace(situation, price=price * factor))
    more = HazardTtl().decide(replace(situation, loss_s=loss_s * factor))
    assert dear.ttl_s <= cheap.ttl_s <= more.ttl_s
    assert dear.value_s <= cheap.value_s + 1e-12


def test_a_human_may_be_worth_waiting_for() -> None:
    history = history_with([3.0] * 100, [], HUMAN)
    assert HazardTtl().decide(Situation(history=history, loss_s=30.0)).ttl_s >= 3.0


def test_no_estimator_fails_without_history() -> None:
    for estimator in (ContinuumCode(), ContinuumPaper(), HazardTtl()):
        for key in (BASH, HUMAN):
            assert estimator.decide(Situation(history=Durations().history(key), loss_s=3.0, prefill_s=3.0)).ttl_s >= 0


@pytest.mark.parametrize("name", ["age_s", "loss_s", "prefill_s", "evicted_wait_s", "price"])
@pytest.mark.parametrize("value", [-0.1, math.inf, math.nan])
def test_a_situation_must_make_sense(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        Situation(history=Durations().history(BASH), **{name: value})


def test_other_bounds() -> None:
    with pytest.raises(ValueError, match="memoryfulness"):
        Situation(history=Durations().history(BASH), memoryfulness=1.5)
    with pytest.raises(ValueError, match="max_ttl_s"):
        HazardTtl(max_ttl_s=0.0)
    for min_chance in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="min_chance"):
            HazardTtl(min_chance=min_chance)
