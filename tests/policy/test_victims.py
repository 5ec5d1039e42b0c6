"""Which blocks each policy gives up: against each other, and against the formulas in plain Python."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from made_evictors import COST, FREQUENCY, SAME_COST
from sizes import pick_size

from agentcache._evictor import (
    AsymCacheEvictor,
    AsymCacheLinearEvictor,
    Evictor,
    FreeContext,
    MaxScoreEvictor,
    PensieveEvictor,
)

YEAR_S = 365 * 24 * 3600.0
NUM_BLOCKS = 24

Asym = AsymCacheEvictor | AsymCacheLinearEvictor
each_asymcache = pytest.mark.parametrize("make", [AsymCacheEvictor, AsymCacheLinearEvictor])


def log_frequency(idle_s: float) -> float:
    return float(min(-idle_s / FREQUENCY["alpha_s"], -(idle_s - FREQUENCY["tau0_s"]) / FREQUENCY["beta_s"]))


def cost_s(position: int) -> float:
    return float(max(COST["floor_s"], COST["slope_s"] * position + COST["base_s"]))


# Neighbours differ by less than two keys can after a year: rounding ties them, and only the order of addition is left.
NEARLY_FLAT: dict[str, Any] = {"slope_s": 1e-15, "base_s": 2e-5, "floor_s": 1e-7}


class SameVictims(RuleBasedStateMachine):
    """Runs and heaps against the scan. Both compare the same doubles, so that not even ties may differ."""

    @initialize(
        cost=st.sampled_from([COST, SAME_COST, NEARLY_FLAT]), start_s=st.sampled_from([0.0, 1e4, YEAR_S, 100 * YEAR_S])
    )
    def start(self, cost: dict[str, Any], start_s: float) -> None:
        self.heaps = AsymCacheEvictor(num_blocks=NUM_BLOCKS, **FREQUENCY, **cost)
        self.scan = AsymCacheLinearEvictor(num_blocks=NUM_BLOCKS, **FREQUENCY, **cost)
        self.taken = list(range(NUM_BLOCKS))
        self.now_s = start_s

    @rule(seconds=st.sampled_from([1e-3, 0.3]) | st.floats(0.0, 60.0))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), order=st.sampled_from(["forwards", "backwards", "any"]))
    def add(self, data: st.DataObject, order: str) -> None:
        count = data.draw(st.integers(1, len(self.taken)))
        freed, self.taken = self.taken[:count], self.taken[count:]
        positions = [16 * n for n in data.draw(st.lists(st.integers(0, 8000), min_size=count, max_size=count))]
        if order != "any":
            positions.sort(reverse=order == "backwards")
        factor = data.draw(st.sampled_from([1.0, 0.5]) | st.floats(1e-3, 1e3))
        for evictor in (self.heaps, self.scan):
            evictor.add(freed, positions, self.now_s, FreeContext(factor=factor))

    @rule(count=st.integers(1, 4), data=st.data())
    def remove(self, count: int, data: st.DataObject) -> None:
        for _ in range(min(count, len(self.heaps))):
            block_id = data.draw(st.sampled_from(list(self.scan.order(self.now_s))))
            self.heaps.remove(block_id)
            self.scan.remove(block_id)
            self.taken.append(block_id)

    @rule(value=st.sampled_from([1.0]) | st.floats(1e-6, 1e6))
    def set_lambda(self, value: float) -> None:
        self.heaps.set_lambda(value)
        self.scan.set_lambda(value)

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.scan)))
        victims = self.heaps.evict(count, self.now_s)
        assert victims == self.scan.evict(count, self.now_s)
        self.taken += victims

    @invariant()
    def list_the_same(self) -> None:
        assert list(self.heaps.order(self.now_s)) == list(self.scan.order(self.now_s))
        self.heaps.check_integrity()
        self.scan.check_integrity()


def test_asymcache_takes_the_same_victims_as_the_scan() -> None:
    run_state_machine_as_test(
        SameVictims, settings=settings(max_examples=pick_size(40, 150), stateful_step_count=25, deadline=None)
    )


def test_blocks_tied_by_rounding_stay_in_the_order_of_addition() -> None:
    # A century of clock: the late keys of these blocks are the same double, the early ones are not.
    now_s = 100 * YEAR_S
    for make in (AsymCacheEvictor, AsymCacheLinearEvictor):
        evictor = make(num_blocks=3, **FREQUENCY, slope_s=1e-15, base_s=2e-5, floor_s=1e-7)
        evictor.add([0, 1, 2], [48_000, 32_000, 16_000], now_s)
        assert evictor.evict(3, now_s + 1e3) == [0, 1, 2], "by the late keys"


Uses = dict[int, tuple[int, float, float]]


@st.composite
def uses(draw: st.DrawFn) -> Uses:
    """Position, time of freeing and factor of each block."""
    one = st.tuples(st.integers(0, 8000).map(lambda n: 16 * n), st.floats(0.0, 100.0), st.floats(0.1, 10.0))
    drawn = draw(st.lists(one, min_size=2, max_size=NUM_BLOCKS))
    return dict(enumerate(sorted(drawn, key=lambda use: use[1])))


def evict_all(evictor: Evictor, blocks: Uses, now_s: float) -> list[int]:
    for block_id, (position, last_s, factor) in blocks.items():
        evictor.add([block_id], [position], last_s, FreeContext(factor=factor))
    return evictor.evict(len(blocks), now_s)


@given(blocks=uses(), wait_s=st.floats(0.0, 1e3))
def test_max_score_goes_by_reuse_probability_alone(blocks: Uses, wait_s: float) -> None:
    now_s = 100.0 + wait_s
    score = {i: math.log(factor) + log_frequency(now_s - last_s) for i, (_, last_s, factor) in blocks.items()}
    evictor = MaxScoreEvictor(num_blocks=NUM_BLOCKS, **FREQUENCY)
    assert evict_all(evictor, blocks, now_s) == sorted(blocks, key=lambda i: (score[i], i))


@given(blocks=uses(), wait_s=st.floats(0.0, 1e3))
def test_pensieve_goes_by_cost_over_idle_time(blocks: Uses, wait_s: float) -> None:
    now_s = 100.0 + wait_s
    score = {
        i: cost_s(position) * factor / max(now_s - last_s, 1e-3) for i, (position, last_s, factor) in blocks.items()
    }
    evictor = PensieveEvictor(num_blocks=NUM_BLOCKS, **COST)
    assert evict_all(evictor, blocks, now_s) == sorted(blocks, key=lambda i: (score[i], i))


@each_asymcache
@given(blocks=uses(), wait_s=st.floats(0.0, 1e3), value=st.floats(1e-3, 1e3))
def test_asymcache_gives_up_the_least_expected_cost(
    make: type[Asym], blocks: Uses, wait_s: float, value: float
) -> None:
    now_s = 100.0 + wait_s
    evictor = make(num_blocks=NUM_BLOCKS, **FREQUENCY, **COST)
    evictor.set_lambda(value)

    def log_expected_cost(block_id: int) -> float:
        position, last_s, factor = blocks[block_id]
        idle_s = now_s - last_s
        early = -idle_s / FREQUENCY["alpha_s"]
        late = math.log(value) - (idle_s - FREQUENCY["tau0_s"]) / FREQUENCY["beta_s"]
        return float(math.log(cost_s(position) * factor) + min(early, late))

    expected = [log_expected_cost(block_id) for block_id in evict_all(evictor, blocks, now_s)]
    # Rounding differs from the keys', so near-ties may stand in either order.
    assert all(left <= right + 1e-9 for left, right in pairwise(expected))


@each_asymcache
def test_lambda_moves_the_turning_point(make: type[Asym]) -> None:
    # At 20 s block 0, cheap and young, competes with block 1, dear and past its lifespan of 10 s.
    evictor = make(num_blocks=2, **FREQUENCY, slope_s=1e-3, base_s=0.0, floor_s=1e-7)
    evictor.add([1], [1000], 0.0)
    evictor.add([0], [1], 19.0)
    assert list(evictor.order(20.0)) == [1, 0]
    evictor.set_lambda(1e12)
    assert list(evictor.order(20.0)) == [0, 1]
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="lambda"):
            evictor.set_lambda(wrong)


@each_asymcache
@pytest.mark.parametrize("start_s", [0.0, YEAR_S, 10 * YEAR_S])
def test_order_survives_years_of_uptime(make: type[Asym], start_s: float) -> None:
    count = 2000
    evictor = make(num_blocks=2 * count, **FREQUENCY, **COST)
    # Neighbours of one request, by position; and one block every 0.1 ms, all at one position, much later.
    by_position = list(range(count))
    evictor.add(by_position[::-1], [16 * (i + 1) for i in by_position[::-1]], start_s)
    by_time = list(range(count, 2 * count))
    for step, block_id in enumerate(by_time):
        evictor.add([block_id], [16], start_s + 60.0 + 1e-4 * step)
    now_s = start_s + 60.0 + 1e-4 * count
    assert list(evictor.order(now_s)) == by_position + by_time
    assert evictor.evict(count, now_s) == by_position
    # A dear block of a minute ago is worth less than a cheap one of now, on the first day as after years.
    assert evictor.evict(count, now_s + 1e6) == by_time


@each_asymcache
def test_a_years_wait_does_not_overflow(make: type[Asym]) -> None:
    evictor = make(num_blocks=3, **FREQUENCY, **COST)
    evictor.add([0, 1], [32, 16], 0.0)
    evictor.add([2], [16], YEAR_S)
    assert evictor.evict(3, 2 * YEAR_S) == [1, 0, 2]


@given(
    gaps_s=st.lists(st.sampled_from([0.0, 1e-6]) | st.floats(0.0, 1e4), min_size=1, max_size=NUM_BLOCKS),
    start_s=st.sampled_from([0.0, YEAR_S]),
)
def test_order_is_lru_where_all_blocks_cost_the_same(gaps_s: list[float], start_s: float) -> None:
    for evictor in (
        AsymCacheEvictor(num_blocks=NUM_BLOCKS, **FREQUENCY, **SAME_COST),
        MaxScoreEvictor(num_blocks=NUM_BLOCKS, **FREQUENCY),
    ):
        now_s = start_s
        for block_id, gap_s in enumerate(gaps_s):
            now_s += gap_s
            evictor.add([block_id], [16 * (block_id * 7 % 5)], now_s)
        assert evictor.evict(len(gaps_s), now_s + 5.0) == list(range(len(gaps_s)))


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"alpha_s": 0.0}, "alpha_s"), ({"beta_s": math.inf}, "beta_s"), ({"tau0_s": math.nan}, "tau0_s"),
     ({"slope_s": math.nan}, "slope_s"), ({"floor_s": 0.0}, "floor_s"), ({"num_blocks": -1}, "num_blocks")],
)  # fmt: skip
@each_asymcache
def test_wrong_parameters_are_named(make: type[Asym], changed: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**{"num_blocks": 4, **FREQUENCY, **COST, **changed})
