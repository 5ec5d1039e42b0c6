from __future__ import annotations

import math

import pytest
from hand_clock import Clock
from hypothesis import given
from hypothesis import strategies as st

from tool_runtime.learning.runtime import Load

HALF_LIFE_S = 60.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def load(clock: Clock) -> Load:
    return Load(clock)


def test_all_is_0_before_anything_was_observed(load: Load) -> None:
    assert (load.evicted_wait_s, load.price(1.0, queued=False)) == (0, 0)


def test_the_evicted_wait_counts_only_requests_that_rebuilt(load: Load) -> None:
    for wait_s, rebuilt_s in ((1.0, 0.0), (4.0, 0.1), (8.0, 2.0)):
        load.admitted(wait_s, rebuilt_s)
    assert load.evicted_wait_s == 6.0
    for _ in range(300):
        load.admitted(2.0, 0.1)
    assert load.evicted_wait_s == 2.0


def test_admissions_that_rebuild_nothing_cost_nothing(load: Load) -> None:
    for _ in range(100):
        load.admitted(30.0, 0.0)
    assert load.price(1.0, queued=False) == 0.0


def test_queued_requests_lose_the_share_that_is_kept(load: Load) -> None:
    assert load.price(0.25, queued=True) == 0.25
    load.admitted(0.0, 6.0)
    assert load.price(0.25, queued=True) == 0.25 + load.price(0.25, queued=False)


def test_a_steady_rebuilding_rate_is_the_price_of_the_cache(load: Load, clock: Clock) -> None:
    for _ in range(2000):
        clock.now_s += 0.5
        load.admitted(0.0, 0.1)
    # A fifth of the time goes into what was there before.
    assert load.price(1.0, queued=False) == pytest.approx(0.2, rel=0.01)
    assert load.price(0.25, queued=False) == pytest.approx(0.05, rel=0.01)


def test_what_was_rebuilt_counts_for_half_after_a_half_life(load: Load, clock: Clock) -> None:
    load.admitted(0.0, 6.0)
    at_once = load.price(1.0, queued=False)
    assert at_once == pytest.approx(6.0 * math.log(2) / HALF_LIFE_S)
    clock.now_s += HALF_LIFE_S
    assert load.price(1.0, queued=False) == pytest.approx(at_once / 2)
    # Asking changes nothing.
    assert load.price(1.0, queued=False) == pytest.approx(at_once / 2)
    clock.now_s += 1e6
    assert load.price(1.0, queued=False) == pytest.approx(0.0)


def test_a_clock_that_jumps_back_neither_adds_nor_fades(load: Load, clock: Clock) -> None:
    load.admitted(-3.0, 6.0)
    price = load.price(1.0, queued=False)
    clock.now_s -= 500
    load.admitted(-500.0, 0.0)
    assert load.price(1.0, queued=False) == price
    assert load.evicted_wait_s == 0.0
    clock.now_s += 500 + HALF_LIFE_S
    assert load.price(1.0, queued=False) == pytest.approx(price / 2)


steps = st.tuples(st.floats(-100, 1000), st.floats(-10, 1e4), st.floats(0, 1e4))


@given(st.lists(steps, max_size=60), st.floats(0, 1))
def test_whatever_happens_it_is_finite_and_not_negative(steps: list[tuple[float, float, float]], share: float) -> None:
    clock = Clock()
    load = Load(clock)
    for seconds, wait_s, rebuilt_s in steps:
        clock.now_s += seconds
        load.admitted(wait_s, rebuilt_s)
        assert 0 <= load.evicted_wait_s < math.inf
        for queued in (False, True):
            assert 0 <= load.price(share, queued=queued) <= load.price(1.0, queued=queued) < math.inf
