from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.policy.lifespan import Frequency

lifespans = st.floats(1e-2, 1e5)
probabilities = st.floats(0.01, 0.99)
ratios = st.floats(1.5, 1e3)
a_curve = given(lifespan_s=lifespans, probability=probabilities, ratio=ratios)


def test_the_parameters_follow_from_the_turning_point() -> None:
    frequency = Frequency.from_turning_point(60.0, 0.5, 40.0)
    assert frequency.alpha_s == pytest.approx(60 / math.log(2))
    assert frequency.beta_s == pytest.approx(60 / math.log(2) / 40)
    assert frequency.tau0_s == pytest.approx(58.5)


@a_curve
def test_both_branches_meet_at_the_lifespan(lifespan_s: float, probability: float, ratio: float) -> None:
    frequency = Frequency.from_turning_point(lifespan_s, probability, ratio)
    assert math.exp(-lifespan_s / frequency.alpha_s) == pytest.approx(probability)
    assert math.exp(-(lifespan_s - frequency.tau0_s) / frequency.beta_s) == pytest.approx(probability, rel=1e-6)


@a_curve
def test_the_slope_changes_by_the_ratio_at_the_lifespan(lifespan_s: float, probability: float, ratio: float) -> None:
    frequency = Frequency.from_turning_point(lifespan_s, probability, ratio)

    def log(idle_s: float) -> float:
        return min(-idle_s / frequency.alpha_s, -(idle_s - frequency.tau0_s) / frequency.beta_s)

    step = lifespan_s * 1e-3
    before = log(lifespan_s - step) - log(lifespan_s)
    after = log(lifespan_s) - log(lifespan_s + step)
    assert after / before == pytest.approx(ratio, rel=1e-4)
