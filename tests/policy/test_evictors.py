from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from evictor_conformance import NUM_BLOCKS, EvictorConformance, LruConformance
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from made_evictors import COST, EVICTORS, FREQUENCY, SIZED, MakeEvictor
from sizes import pick_size

from agentcache._evictor import AsymCacheEvictor, AsymCacheLinearEvictor, FreeContext, LruEvictor
from agentcache.policy.lifespan import Frequency, LambdaController, LifespanEstimator

SETTINGS = settings(max_examples=pick_size(20, 60), stateful_step_count=30, deadline=None)

each_evictor = pytest.mark.parametrize("make_evictor", EVICTORS.values(), ids=EVICTORS)
each_sized = pytest.mark.parametrize("make_evictor", SIZED.values(), ids=SIZED)


@each_evictor
def test_evictor_keeps_the_contract(make_evictor: MakeEvictor) -> None:
    # A factory will do for Hypothesis, though its annotation asks for a class.
    run_state_machine_as_test(lambda: EvictorConformance(lambda: make_evictor(NUM_BLOCKS)), settings=SETTINGS)  # type: ignore[arg-type]


@each_evictor
def test_earlier_ids_go_first_where_nothing_else_is_known(make_evictor: MakeEvictor) -> None:
    evictor = make_evictor(10)
    evictor.add([5, 0, 9, 3], [64] * 4, 1.0)
    evictor.add([7, 1], [64] * 2, 1.0)
    assert evictor.evict(6, 2.0) == [5, 0, 9, 3, 7, 1]


@each_evictor
def test_policy_makes_a_new_evictor_each_time(make_evictor: MakeEvictor) -> None:
    make_evictor(2).add([1], [16], 0.0)
    assert len(make_evictor(2)) == 0


def test_lru_evicts_exactly_the_least_recently_freed() -> None:
    run_state_machine_as_test(LruConformance, settings=SETTINGS)


def test_lru_takes_any_number_of_blocks() -> None:
    evictor = LruEvictor()
    evictor.add_empty([3])
    evictor.add([100_000, 2], [16, 16], 0.0)
    evictor.add([70], [16], 0.0)
    evictor.check_integrity()
    assert evictor.evict(4, 0.0) == [3, 100_000, 2, 70]


@each_sized
def test_a_sized_evictor_refuses_an_id_that_no_block_has(make_evictor: MakeEvictor) -> None:
    evictor = make_evictor(4)
    with pytest.raises(ValueError, match="no block 4"):
        evictor.add([1, 4], [16, 16], 0.0)
    with pytest.raises(ValueError, match="no block 4"):
        evictor.add_empty([1, 4])
    assert len(evictor) == 0


@each_evictor
@pytest.mark.parametrize(
    ("block_ids", "positions", "now_s", "factor", "message"),
    [
        ([-1], [16], 0.0, 1.0, "no block -1"),
        ([2**40], [16], 0.0, 1.0, "out of range"),
        ([0, 1], [16, 16], 0.0, 1.0, "block 1 is free already"),
        ([0, 3], [16, 16], 0.0, 1.0, "block 3 is free already"),
        ([0, 0], [16, 16], 0.0, 1.0, "block 0 is given twice"),
        ([0], [16, 16], 0.0, 1.0, "differ in length"),
        ([0], [-16], 0.0, 1.0, "position is negative"),
        ([0], [16], float("nan"), 1.0, "now_s must be finite"),
        ([0], [16], float("inf"), 1.0, "now_s must be finite"),
        ([0], [16], 0.0, 0.0, "factor must be"),
        ([0], [16], 0.0, float("nan"), "factor must be"),
    ],
)
def test_wrong_arguments_add_nothing(  # noqa: PLR0917 (one parameter a column)
    make_evictor: MakeEvictor, block_ids: list[int], positions: list[int], now_s: float, factor: float, message: str
) -> None:
    evictor = make_evictor(4)
    evictor.add([1], [16], 0.0)
    evictor.add_empty([3])
    with pytest.raises(ValueError, match=message):
        evictor.add(block_ids, positions, now_s, FreeContext(factor=factor))
    assert list(evictor.order(1.0)) == [3, 1]


@each_evictor
def test_wrong_arguments_of_other_calls_change_nothing(make_evictor: MakeEvictor) -> None:
    evictor = make_evictor(4)
    evictor.add([1], [16], 0.0)
    for call in (
        lambda: evictor.add_empty([1]),
        lambda: evictor.add_empty([2, 2]),
        lambda: evictor.evict(-1, 0.0),
        lambda: evictor.evict(1, float("inf")),
        lambda: evictor.order(float("nan")),
    ):
        with pytest.raises(ValueError, match=r"free|twice|finite|evict"):
            call()
    with pytest.raises(KeyError):
        evictor.remove(-1)
    assert list(evictor.order(1.0)) == [1]


@each_evictor
def test_orders_that_are_asked_for_at_once_are_right(make_evictor: MakeEvictor) -> None:
    """They are made without the GIL."""
    count = 6000
    evictor = make_evictor(count)
    for start in range(0, count, 3):
        evictor.add(range(start, start + 3), [16 * (7 * start % 4001), 32, 48], 1e-3 * start)
    expected = list(evictor.order(1e3))
    with ThreadPoolExecutor(8) as pool:
        orders = list(pool.map(lambda _: list(evictor.order(1e3)), range(64)))
    assert all(order == expected for order in orders)


def test_asymcache_with_a_controller_follows_recent_reuse() -> None:
    """Two blocks of which λ decides: one cheap and fresh, one dear and idle beyond the lifespan that was set."""
    frequency = Frequency(**FREQUENCY)

    def victim(gaps_s: Sequence[float]) -> int:
        controller = LambdaController(frequency, LifespanEstimator(window=10), limit=1e6)
        evictor = AsymCacheEvictor(num_blocks=2, **FREQUENCY, **COST, controller=controller.observe)
        evictor.add([0], [100_000], 0.0)
        evictor.add([1], [16], 11.0)
        for gap_s in gaps_s:
            evictor.observe_reuse(gap_s)
        return evictor.evict(1, 12.0)[0]

    # Set for 10 s, the dear block that has been idle for 12 s is past its time; where reuse takes 14 s, it is not.
    assert victim([]) == 0
    assert victim([14.0] * 10) == 1


@pytest.mark.parametrize("make", [AsymCacheEvictor, AsymCacheLinearEvictor])
def test_an_error_of_the_controller_leaves_lambda(
    make: type[AsymCacheEvictor | AsymCacheLinearEvictor],
) -> None:
    controller = LambdaController(Frequency(**FREQUENCY), LifespanEstimator(window=10), limit=1e6)
    evictor = make(num_blocks=2, **FREQUENCY, **COST, controller=controller.observe)
    evictor.observe_reuse(14.0)
    before = evictor.lambda_value
    with pytest.raises(ValueError, match="reuse gap of -1"):
        evictor.observe_reuse(-1.0)
    assert evictor.lambda_value == before != 1.0


def test_no_class_derives_from_a_compiled_evictor() -> None:
    """C++ would not call its methods."""
    with pytest.raises(TypeError, match="not an acceptable base type"):
        type("Own", (LruEvictor,), {})
