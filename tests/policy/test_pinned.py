"""Soft pins: which blocks go when only pinned ones are left, and what the inner evictor makes of pinned blocks."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from made_evictors import COST, FREQUENCY
from pinned_reference import INNER, NUM_BLOCKS, pin_around

from agentcache import _evictor
from agentcache._evictor import AsymCacheEvictor, FreeContext, LruEvictor
from agentcache.policy.lifespan import Frequency, LambdaController, LifespanEstimator


@pytest.mark.parametrize(("cheapest_first", "victims"), [(False, [5, 3, 6, 4, 2, 1, 0]), (True, [5, 3, 4, 6, 1, 2, 0])])
def test_when_all_blocks_are_pinned_those_worth_least_go(cheapest_first: bool, victims: list[int]) -> None:
    evictor = pin_around(LruEvictor(), num_blocks=7, cheapest_first=cheapest_first)
    for pin, value, block_ids, positions in (
        (9, 2.0, [2, 1], [48, 32]),
        (8, 3.0, [0], [16]),
        (4, 1.0, [3], [16]),
        (7, 1.0, [6, 4], [80, 32]),
        (1, 0.5, [5], [16]),
    ):
        evictor.set_value(pin, value)
        evictor.add(block_ids, positions, 0.0, FreeContext(pin=pin))
    assert list(evictor.order(1.0)) == victims
    assert evictor.evict(4, 1.0) == victims[:4]
    assert evictor.evict(3, 1.0) == victims[4:]
    assert evictor.take_losses() == {1: 1, 4: 1, 7: 2, 8: 1, 9: 2}
    assert evictor.take_losses() == {}
    assert evictor.pinned == len(evictor) == 0


def test_a_worthless_pin_still_outlasts_all_that_is_not_pinned() -> None:
    evictor = pin_around(LruEvictor(), num_blocks=6)
    evictor.add([0, 1], [32, 0], 0.0, FreeContext(pin=0))
    evictor.add([2], [16], 1.0)
    evictor.add_empty([3])
    assert evictor.evict(4, 2.0) == [3, 1, 2, 0], "at position 0 there is nothing to pin"


def test_released_blocks_age_on_from_when_they_were_freed() -> None:
    evictor = pin_around(INNER["agentcache"](NUM_BLOCKS))
    evictor.add([0, 1], [32, 16], 0.0, FreeContext(pin=0))
    evictor.add([2], [16], 50.0)
    assert list(evictor.order(60.0)) == [2, 0, 1]
    assert evictor.release(0, 60.0) == 2
    assert list(evictor.order(60.0)) == [1, 0, 2]
    assert evictor.release(0, 60.0) == evictor.size_of(0) == 0


def test_released_blocks_return_in_the_order_of_their_pinning() -> None:
    evictor = pin_around(LruEvictor(), cheapest_first=True)
    for pin, block_ids in ((1, [9]), (0, [5, 2]), (0, [7, 8]), (0, [0, 1, 3])):
        evictor.add(block_ids, [16 * (10 - block_id) for block_id in block_ids], float(pin), FreeContext(pin=pin))
    evictor.release(1, 2.0)
    evictor.remove(1)
    assert list(evictor.order(2.0)) == [9, 8, 7, 5, 3, 2, 0]
    assert evictor.release(0, 2.0) == 6
    assert list(evictor.order(2.0)) == [9, 5, 2, 7, 8, 0, 3]


def test_a_pin_keeps_its_value_until_it_is_released() -> None:
    evictor = pin_around(LruEvictor())
    evictor.set_value(0, 5.0)
    for pin in (0, 1):
        evictor.add([pin], [16], 0.0, FreeContext(pin=pin))
    evictor.remove(0)
    evictor.add([0], [16], 1.0, FreeContext(pin=0))
    assert list(evictor.order(1.0)) == [1, 0]
    evictor.release(0, 1.0)
    evictor.add([2], [16], 1.0, FreeContext(pin=0))
    assert list(evictor.order(1.0)) == [0, 2, 1]


def test_adopt_takes_free_blocks_with_kv_and_without_a_pin() -> None:
    evictor = pin_around(LruEvictor(), num_blocks=8)
    evictor.add([0], [16], 0.0, FreeContext(pin=0))
    evictor.add([1, 2, 3], [16, 32, 0], 0.0)
    evictor.add_empty([4])
    assert evictor.adopt(1, [2, 0, 1, 2, 3, 4, 5, -1, 99], 1.0) == 2
    assert (evictor.size_of(0), evictor.size_of(1), evictor.pinned) == (1, 2, 3)
    assert list(evictor.order(1.0)) == [4, 3, 0, 2, 1], "in the order in which they were adopted"
    evictor.remove(1)
    assert evictor.release(1, 2.0) == 1
    assert list(evictor.order(2.0)) == [4, 3, 2, 0]


def test_adopted_blocks_keep_their_factor_and_class() -> None:
    evictor = pin_around(INNER["asymcache"](NUM_BLOCKS))
    evictor.add([0, 1], [32, 16], 0.0, FreeContext(factor=0.5))
    evictor.add([2, 3], [32, 16], 0.0, FreeContext(factor=2.0))
    assert evictor.adopt(0, [2, 0, 3, 1], 1.0) == 4
    assert list(evictor.order(1.0)) == [2, 0, 3, 1]
    evictor.release(0, 2.0)
    assert list(evictor.order(2.0)) == [1, 0, 3, 2]


def test_reuse_is_passed_on_to_the_inner_evictor() -> None:
    controller = LambdaController(Frequency(**FREQUENCY), LifespanEstimator(window=10), limit=1e6)
    inner = AsymCacheEvictor(num_blocks=2, **FREQUENCY, **COST, controller=controller.observe)
    evictor = pin_around(inner, num_blocks=2)
    evictor.observe_reuse(14.0)
    assert evictor.inner is inner
    assert inner.lambda_value != 1.0


@dataclass(slots=True)
class QueuedBlock:
    id: int
    position: int | None


def test_a_queue_forgets_the_kv_of_pinned_blocks_too() -> None:
    blocks = [QueuedBlock(0, 16), QueuedBlock(1, 32), QueuedBlock(2, None)]
    evictor = pin_around(LruEvictor(), num_blocks=3)
    queue = _evictor.FreeQueue(
        num_blocks=3,
        evictor=evictor,
        notes_reuse=False,
        block_type=QueuedBlock,
        id_attribute="id",
        position_attribute="position",
    )
    queue.context = FreeContext(pin=6)
    queue.free_n(blocks, 1.0)
    assert evictor.size_of(6) == 2
    queue.forget_kv_at(1.0)
    assert evictor.take_losses() == {6: 2}
    assert evictor.pinned == 0
    assert queue.list_free(blocks, 1.0) == [blocks[2], blocks[0], blocks[1]]
    assert evictor.adopt(6, [0, 1, 2], 1.0) == 0, "empty blocks are not worth a pin"


def test_wrong_arguments_change_nothing() -> None:
    evictor = pin_around(LruEvictor(), num_blocks=4)
    evictor.add([0, 1], [32, 16], 0.0, FreeContext(pin=0))
    evictor.add([2], [32], 0.0)
    for call, message in (
        (lambda: evictor.add([0], [16], 1.0, FreeContext(pin=-1)), "pin"),
        (lambda: evictor.set_value(-1, 1.0), "pin"),
        (lambda: evictor.release(-1, 1.0), "pin"),
        (lambda: evictor.adopt(-1, [2], 1.0), "pin"),
        (lambda: evictor.set_value(0, -1.0), "value"),
        (lambda: evictor.set_value(0, float("nan")), "value"),
        (lambda: evictor.set_value(0, float("inf")), "value"),
        (lambda: evictor.release(0, float("nan")), "now_s"),
        (lambda: evictor.adopt(0, [2], float("inf")), "now_s"),
        (lambda: evictor.adopt(0, [2**40], 1.0), "out of range"),
        (lambda: evictor.add([0], [16], 1.0), "free already"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert list(evictor.order(1.0)) == [2, 0, 1]
    assert evictor.pinned == 2


def test_the_inner_evictor_must_fit() -> None:
    used = LruEvictor()
    used.add([0], [16], 0.0)
    with pytest.raises(ValueError, match="holds blocks already"):
        pin_around(used)
    with pytest.raises(ValueError, match="no block 8"):
        pin_around(INNER["agentcache"](8), num_blocks=9)
    with pytest.raises(ValueError, match="num_blocks"):
        pin_around(LruEvictor(), num_blocks=-1)


def test_pins_that_share_a_context_keep_one_number_each() -> None:
    evictor = pin_around(LruEvictor(), num_blocks=1000)
    for pin in range(500):
        evictor.reserve(pin, range(1000))
    assert (evictor.reservations, evictor.reserved_by(0)) == (500, 1000)
    evictor.reserve(500, range(10))
    # 500 of the blocks behind the place where the last one parts, and 501 before it.
    assert evictor.reservations == 1001
    for pin in range(500):
        evictor.release(pin, 0.0)
    assert (evictor.reservations, evictor.reserved_by(500)) == (1, 10)
    evictor.check_integrity()


def test_a_context_that_was_parted_is_one_again_for_later_pins() -> None:
    evictor = pin_around(LruEvictor())
    evictor.reserve(0, range(20))
    for pin, shared in enumerate((3, 9, 14), 1):
        evictor.reserve(pin, range(shared))
    for pin in (1, 2, 3):
        evictor.release(pin, 0.0)
    assert evictor.reservations == 4
    evictor.reserve(4, range(20))
    assert evictor.reservations == 2
    evictor.check_integrity()


def test_a_lost_context_is_a_loss_of_each_pin_that_shared_it() -> None:
    evictor = pin_around(LruEvictor())
    for pin in range(5):
        evictor.reserve(pin, range(20))
    evictor.add(range(20), range(16, 336, 16), 1.0, FreeContext(pin=0))
    evictor.release(4, 2.0)
    evictor.evict(6, 3.0)
    evictor.release(3, 3.0)
    evictor.evict(6, 4.0)
    assert evictor.take_losses() == {0: 12, 1: 12, 2: 12, 3: 6}
