"""What an evicted block costs where some are kept in the CPU cache."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.policy.price import RecomputeCost, ReturnPrice

COMPUTE = RecomputeCost(slope_s=1e-7, base_s=3e-4, floor_s=1e-9)
FETCH_S = 5e-5


def make_price(size_ratio: float) -> ReturnPrice:
    return ReturnPrice(COMPUTE, FETCH_S, size_ratio=size_ratio)


def test_small_hosts_lose_all_and_roomy_ones_nothing() -> None:
    assert make_price(0.0).at(1000) == pytest.approx(COMPUTE.at(1000))
    assert make_price(2.0).at(1000) == pytest.approx(FETCH_S)
    assert make_price(5.0).lost_share == 0.0


def test_what_is_seen_outweighs_what_was_assumed() -> None:
    price = make_price(2.0)
    for _ in range(200):
        price.note_lost(900)
        price.note_kept(100)
    assert price.lost_share == pytest.approx(0.9, abs=0.05)
    for _ in range(200):
        price.note_kept(1000)
    assert price.lost_share < 0.01


@given(st.floats(0, 4), st.lists(st.tuples(st.booleans(), st.integers(0, 50_000)), max_size=40))
def test_price_stays_between_fetching_and_computing(ratio: float, seen: list[tuple[bool, int]]) -> None:
    price = make_price(ratio)
    for is_lost, blocks in seen:
        (price.note_lost if is_lost else price.note_kept)(blocks)
        assert 0 <= price.lost_share <= 1
        assert price.at(5000) * (1 + 1e-9) >= FETCH_S
        assert price.at(5000) <= COMPUTE.at(5000) * (1 + 1e-9)
