from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sizes import IS_THOROUGH

from agentcache.policy.step_cost import Row, StepCost
from agentcache.policy.step_fit import COEFFICIENTS, MeasuredStep, fit_step_cost
from agentcache.profile.points import BatchPoint, Limits, PointSource

# About Llama-3.1-8B on an H200.
PLANTED = StepCost(
    overhead_s=2e-3,
    weights_read_s=3.9e-3,
    token_s=23e-6,
    token_link_s=0.0,
    head_s=8e-6,
    pair_s=0.85e-9,
    kv_read_s=34e-9,
    prefill_overhead_s=2e-3,
)
LIMITS = Limits(max_tokens=65_536, step_tokens=8192, batch_tokens=262_144, max_seqs=256, block_size=16)
rows = st.lists(st.builds(Row, st.integers(1, 5000), st.integers(0, 50_000)), min_size=1, max_size=5)


def make_steps(cost: StepCost, count: int, noise: float = 0.0) -> list[MeasuredStep]:
    """What the profile's own points come to, chunk by chunk."""
    random = np.random.default_rng(5)
    batches: list[tuple[Row, ...]] = []
    for point in PointSource(LIMITS, 5).make(count):
        if isinstance(point, BatchPoint):
            decodes = (Row(1, point.context),) * point.decodes
            batches += [decodes, *((*decodes, prefill) for prefill in point.prefills)]
        else:
            l1, q1, l2, q2 = point
            parts = [(q1, l1), (q2, l1 + q1 + l2)]
            batches += [
                (Row(min(8192, query - done), context + done),)
                for query, context in parts
                for done in range(0, query, 8192)
            ]
    return [MeasuredStep(rows, cost.step_s(rows) * (1 + noise * random.standard_normal())) for rows in batches]


@pytest.mark.parametrize("overlap", [1.0, 2.0, 5.0, None] if IS_THOROUGH else [2.0, None])
def test_planted_coefficients_are_found(overlap: float | None) -> None:
    planted = StepCost(**{**asdict(PLANTED), "overlap": overlap})
    fitted = fit_step_cost(make_steps(planted, 120))
    assert fitted.r_squared > 0.9999
    assert abs(fitted.residuals[0].share) < 0.02
    assert fitted.step_cost.token_s == pytest.approx(planted.token_s, rel=0.02)
    assert fitted.step_cost.pair_s == pytest.approx(planted.pair_s, rel=0.02)


def test_noise_moves_no_prediction_far() -> None:
    fitted = fit_step_cost(make_steps(PLANTED, 180, noise=0.03))
    for step in make_steps(PLANTED, 60):
        assert fitted.step_cost.step_s(step.rows) == pytest.approx(step.seconds, rel=0.05)
    shares = [abs(residual.share) for residual in fitted.residuals]
    assert shares == sorted(shares, reverse=True)
    assert np.median(shares) < 0.04
    worst = fitted.residuals[0]
    assert worst.seconds == pytest.approx(worst.step.seconds - fitted.step_cost.step_s(worst.step.rows))


def test_no_coefficient_is_negative_whatever_was_measured() -> None:
    random = np.random.default_rng(0)
    steps = [step._replace(seconds=float(random.uniform(1e-3, 1))) for step in make_steps(PLANTED, 60)]
    cost = fit_step_cost(steps).step_cost
    assert min(getattr(cost, name) for name in COEFFICIENTS) >= 0
    assert cost.token_link_s == 0


@pytest.mark.parametrize("overlap", [1.0, 1.5, 3.0, None])
@given(rows=rows, more=st.integers(1, 1000))
def test_more_work_takes_longer_with_every_overlap(rows: list[Row], more: int, overlap: float | None) -> None:
    cost = StepCost(**{**asdict(PLANTED), "overlap": overlap})
    whole = cost.step_s(rows)
    assert cost.step_s([rows[0]._replace(context=rows[0].context + more), *rows[1:]]) > whole
    assert whole <= cost.step_s([*rows, Row(more, 0)]) <= (whole + cost.prefill_s(more)) * (1 + 1e-9)


def test_overlap_shortens_the_step_down_to_its_longer_part() -> None:
    costs = [StepCost(**{**asdict(PLANTED), "overlap": overlap}) for overlap in (1.0, 2.0, 5.0, 200.0, None)]
    seconds = [cost.step_s([Row(170, 0)]) for cost in costs]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-2] == pytest.approx(seconds[-1], rel=1e-2)
    assert seconds[0] > 1.3 * seconds[-1]
