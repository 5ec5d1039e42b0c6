from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.policy.lifespan import Frequency, LambdaController, LifespanEstimator, lifespan_weight

gaps = st.floats(0, 1e6)


@given(observed=st.lists(gaps, min_size=1, max_size=40), window=st.integers(1, 10))
def test_only_the_last_gaps_count(observed: list[float], window: int) -> None:
    estimator = LifespanEstimator(window)
    for gap_s in observed:
        estimator.observe(gap_s)
    assert estimator.mean_s == pytest.approx(np.mean(observed[-window:]), abs=1e-9)


def test_a_huge_gap_leaves_no_trace_once_it_is_out() -> None:
    estimator = LifespanEstimator(window=2)
    for gap_s in (1e15, 0.1, 0.2):
        estimator.observe(gap_s)
    assert estimator.mean_s == pytest.approx(0.15, rel=1e-12)


def test_nothing_is_known_before_the_first_gap() -> None:
    assert LifespanEstimator(10).mean_s is None


@pytest.mark.parametrize("gap_s", [-1e-9, math.nan, math.inf])
def test_an_impossible_gap_is_refused_and_not_kept(gap_s: float) -> None:
    estimator = LifespanEstimator(10)
    with pytest.raises(ValueError, match="reuse gap"):
        estimator.observe(gap_s)
    assert estimator.mean_s is None


@given(lifespan_s=st.floats(1e-2, 1e5), probability=st.floats(0.01, 0.99), ratio=st.floats(1.5, 1e3))
def test_lambda_is_one_when_the_mean_is_the_lifespan(lifespan_s: float, probability: float, ratio: float) -> None:
    frequency = Frequency.from_turning_point(lifespan_s, probability, ratio)
    assert lifespan_weight(frequency, lifespan_s, 1e6) == pytest.approx(1, rel=1e-6)


@given(lifespan_s=st.floats(1e-2, 1e5), shift=st.floats(0.1, 5), ratio=st.floats(1.5, 50))
def test_lambda_moves_the_switch_of_branches_to_the_mean(lifespan_s: float, shift: float, ratio: float) -> None:
    frequency = Frequency.from_turning_point(lifespan_s, 0.5, ratio)
    mean_s = lifespan_s * shift
    log_lambda = math.log(lifespan_weight(frequency, mean_s, 1e300))

    def slow_minus_steep(idle_s: float) -> float:
        return -idle_s / frequency.alpha_s - (log_lambda - (idle_s - frequency.tau0_s) / frequency.beta_s)

    assert slow_minus_steep(mean_s * 0.999) < 0 < slow_minus_steep(mean_s * 1.001)


@given(mean_s=st.floats(0, 1e12), lifespan_s=st.floats(1e-3, 1e6))
def test_lambda_stays_within_its_limit(mean_s: float, lifespan_s: float) -> None:
    weight = lifespan_weight(Frequency.from_turning_point(lifespan_s, 0.5, 40.0), mean_s, 1e3)
    assert 1e-3 * (1 - 1e-12) <= weight <= 1e3 * (1 + 1e-12)


def test_lambda_grows_with_the_mean_from_bound_to_bound() -> None:
    frequency = Frequency.from_turning_point(60.0, 0.5, 40.0)
    weights = [lifespan_weight(frequency, mean_s, 1e6) for mean_s in (0.0, 59.0, 60.0, 61.0, 1e9)]
    assert weights == sorted(weights)
    assert (weights[0], weights[-1]) == pytest.approx((1e-6, 1e6))
    assert weights[3] == pytest.approx(math.exp((61 - 58.5) / frequency.beta_s - 61 / frequency.alpha_s))


def test_controller_follows_the_mean_of_the_latest_gaps() -> None:
    frequency = Frequency.from_turning_point(10.0, 0.5, 40.0)
    controller = LambdaController(frequency, LifespanEstimator(window=2), limit=1e6)
    assert controller.observe(10.0) == pytest.approx(1.0)
    assert controller.observe(10.2) == pytest.approx(lifespan_weight(frequency, 10.1, 1e6))
    assert controller.observe(10.4) == pytest.approx(lifespan_weight(frequency, 10.3, 1e6))
