"""What will be lost, by what jobs want and what there is room for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.policy.foreseen_loss import BESIDE_TIER, WITHOUT_TIER, LossRange, foresee_loss


@pytest.mark.parametrize(("wanted", "loss"), [(0, 0.0), (69, 0.0), (80, 0.25), (90, 0.5), (111, 1.0), (1000, 1.0)])
def test_little_wanted_is_kept_and_too_much_is_lost(wanted: float, loss: float) -> None:
    assert foresee_loss(wanted, 100, LossRange(fits=0.7, full=1.1)) == pytest.approx(loss)


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(1, 1e9), st.sampled_from([BESIDE_TIER, WITHOUT_TIER]))
def test_more_wanted_is_never_lost_less(wanted: float, more: float, room: float, losses: LossRange) -> None:
    assert 0 <= foresee_loss(wanted, room, losses) <= foresee_loss(wanted + more, room, losses) <= 1


@given(st.floats(0, 1e9), st.floats(1, 1e9))
def test_without_a_tier_contexts_that_fit_are_kept(wanted: float, room: float) -> None:
    assert foresee_loss(wanted, room, WITHOUT_TIER) <= foresee_loss(wanted, room, BESIDE_TIER)
