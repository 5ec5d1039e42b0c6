"""What will be lost, by what jobs want and what there is room for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.policy.foreseen_loss import foresee_loss


@pytest.mark.parametrize(("wanted", "loss"), [(0, 0.0), (69, 0.0), (80, 0.25), (90, 0.5), (111, 1.0), (1000, 1.0)])
def test_little_wanted_is_kept_and_too_much_is_lost(wanted: float, loss: float) -> None:
    assert foresee_loss(wanted, 100) == pytest.approx(loss)


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(1, 1e9))
def test_more_wanted_is_never_lost_less(wanted: float, more: float, room: float) -> None:
    assert 0 <= foresee_loss(wanted, room) <= foresee_loss(wanted + more, room) <= 1
