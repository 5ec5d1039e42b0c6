from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from python_lru import PythonLru
from sizes import pick_size
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from agentcache._evictor import Evictor, LruEvictor
from agentcache.engine.blocks.block_queue import BlockQueue, replace_queue
from agentcache.errors import IntegrityError

NUM_BLOCKS = 12


class TwoQueues(RuleBasedStateMachine):
    """Our queue and vLLM's, each over its own blocks with the same ids, are told the same."""

    def __init__(self, evictor: Evictor) -> None:
        super().__init__()
        self.stock_blocks = [KVCacheBlock(number) for number in range(NUM_BLOCKS)]
        self.stock = FreeKVCacheBlockQueue(self.stock_blocks)
        self.our_blocks = [KVCacheBlock(number) for number in range(NUM_BLOCKS)]
        self.ours = BlockQueue(self.our_blocks, self.our_blocks, evictor, lambda: 0.0)

    @precondition(lambda self: self._used())
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(self._used()))
        self._release([block_id])
        self.stock.append(self.stock_blocks[block_id])
        self.ours.append(self.our_blocks[block_id])

    @rule(data=st.data(), name=st.sampled_from(["append_n", "prepend_n"]))
    def add_n(self, data: st.DataObject, name: str) -> None:
        block_ids = data.draw(st.lists(st.sampled_from(self._used()), unique=True)) if self._used() else []
        self._release(block_ids)
        getattr(self.stock, name)([self.stock_blocks[block_id] for block_id in block_ids])
        getattr(self.ours, name)([self.our_blocks[block_id] for block_id in block_ids])

    @rule()
    def popleft(self) -> None:
        expected = outcome(self.stock.popleft)
        assert outcome(self.ours.popleft) == expected
        self._take([expected] if isinstance(expected, int) else [])

    @rule(count=st.integers(0, NUM_BLOCKS + 1))
    def popleft_n(self, count: int) -> None:
        if count > self.stock.num_free_blocks:
            # Stock has a bare assertion there, for its pool counts the free blocks first.
            assert outcome(lambda: self.stock.popleft_n(count))[0] is AssertionError
            assert outcome(lambda: self.ours.popleft_n(count))[0] is ValueError
            return
        expected = [block.block_id for block in self.stock.popleft_n(count)]
        assert [block.block_id for block in self.ours.popleft_n(count)] == expected
        self._take(expected)

    @rule(block_id=st.integers(0, NUM_BLOCKS - 1))
    def remove(self, block_id: int) -> None:
        expected = outcome(lambda: self.stock.remove(self.stock_blocks[block_id]))
        assert outcome(lambda: self.ours.remove(self.our_blocks[block_id])) == expected
        self._take([block_id] if expected is None else [])

    @rule(cursor=st.none() | st.integers(0, NUM_BLOCKS - 1))
    def iter_blocks_after(self, cursor: int | None) -> None:
        expected = self.stock.iter_blocks_after(None if cursor is None else self.stock_blocks[cursor])
        found = self.ours.iter_blocks_after(None if cursor is None else self.our_blocks[cursor])
        assert [block.block_id for block in found] == [block.block_id for block in expected]

    @invariant()
    def hold_the_same(self) -> None:
        free = self.ours.get_all_free_blocks()
        assert [block.block_id for block in free] == [block.block_id for block in self.stock.get_all_free_blocks()]
        assert all(block is self.our_blocks[block.block_id] for block in free)
        assert self.ours.num_free_blocks == self.stock.num_free_blocks
        self.ours.check_integrity()

    def _used(self) -> list[int]:
        return [block.block_id for block in self.our_blocks if block.ref_cnt]

    def _take(self, block_ids: list[int]) -> None:
        for block_id in block_ids:
            self.our_blocks[block_id].ref_cnt = self.stock_blocks[block_id].ref_cnt = 1

    def _release(self, block_ids: list[int]) -> None:
        for block_id in block_ids:
            self.our_blocks[block_id].ref_cnt = self.stock_blocks[block_id].ref_cnt = 0


def outcome(call: Callable[[], Any]) -> Any:
    """What the call gives back, a block by its id; or the type and text of what it raises."""
    try:
        result = call()
    except (AssertionError, RuntimeError, ValueError) as error:
        return type(error), str(error)
    return result.block_id if isinstance(result, KVCacheBlock) else result


@pytest.mark.parametrize("make_evictor", [LruEvictor, PythonLru])
def test_lru_queue_behaves_as_vllms_own(make_evictor: Callable[[], Evictor]) -> None:
    # A factory will do for Hypothesis, though its annotation asks for a class.
    run_state_machine_as_test(
        lambda: TwoQueues(make_evictor()),  # type: ignore[arg-type]
        settings=settings(max_examples=pick_size(30, 100), stateful_step_count=30),
    )


class CorruptEvictor(PythonLru):
    """Lists blocks that it does not have, and counts some."""

    def __init__(self, listed: list[int], counted: int) -> None:
        super().__init__()
        self._listed = listed
        self._counted = counted

    def order(self, now_s: float) -> list[int]:
        return [*super().order(now_s), *self._listed]

    def __len__(self) -> int:
        return super().__len__() + self._counted


def make_queue(evictor: Evictor) -> tuple[BlockQueue, list[KVCacheBlock]]:
    """Six blocks: 0 is the null block, 1 is referenced, the others are free."""
    blocks = [KVCacheBlock(number) for number in range(6)]
    blocks[0].is_null = True
    blocks[1].ref_cnt = 1
    return BlockQueue(blocks, blocks[2:], evictor, lambda: 0.0), blocks


def test_integrity_check_passes_what_is_right() -> None:
    queue, _ = make_queue(LruEvictor())
    queue.check_integrity()


@pytest.mark.parametrize("counted", [0, 1])
def test_integrity_check_finds_a_block_listed_twice(counted: int) -> None:
    queue, _ = make_queue(CorruptEvictor([3], counted))
    with pytest.raises(IntegrityError, match=rf"{4 + counted} blocks are free, the order lists 5: \[2, 3, 4, 5, 3\]"):
        queue.check_integrity()


def test_integrity_check_finds_a_wrong_count() -> None:
    queue, _ = make_queue(CorruptEvictor([], 1))
    with pytest.raises(IntegrityError, match=r"5 blocks are free, the order lists 4: \[2, 3, 4, 5\]"):
        queue.check_integrity()


def test_integrity_check_finds_a_block_both_referenced_and_free() -> None:
    queue, blocks = make_queue(LruEvictor())
    blocks[3].ref_cnt = 1
    with pytest.raises(IntegrityError, match=r"neither free nor referenced, or both: \[3\]"):
        queue.check_integrity()


def test_integrity_check_finds_a_lost_block() -> None:
    evictor = LruEvictor()
    queue, _ = make_queue(evictor)
    evictor.remove(4)
    with pytest.raises(IntegrityError, match=r"neither free nor referenced, or both: \[4\]"):
        queue.check_integrity()


def test_integrity_check_finds_the_null_block_among_the_free() -> None:
    queue, blocks = make_queue(LruEvictor())
    queue.append(blocks[0])
    with pytest.raises(IntegrityError, match=r"neither free nor referenced, or both: \[0\]"):
        queue.check_integrity()


def test_integrity_check_asks_the_evictor_too() -> None:
    evictor = PythonLru()
    queue, _ = make_queue(evictor)
    evictor.add([-1], [16], 0.0)
    with pytest.raises(IntegrityError, match="negative"):
        queue.check_integrity()


def make_used_pool() -> BlockPool:
    """Blocks 1 to 7 were taken; 6, 2 and 4 are back, without KV worth keeping."""
    pool = BlockPool(num_gpu_blocks=12, enable_caching=True, hash_block_size=16)
    taken = {block.block_id: block for block in pool.get_new_blocks(7)}
    pool.free_blocks([taken[6], taken[2], taken[4]])
    return pool


def test_replaced_queue_goes_on_where_the_pools_own_stood() -> None:
    stock, pool = make_used_pool(), make_used_pool()
    queue = replace_queue(pool, LruEvictor(), lambda: 0.0)
    assert pool.free_block_queue is queue  # type: ignore[comparison-overlap]
    queue.check_integrity()
    assert [block.block_id for block in queue.get_all_free_blocks()] == [6, 2, 4, 8, 9, 10, 11]
    for one in (stock, pool):
        one.free_blocks([one.blocks[1], one.blocks[5]])
    taken = [block.block_id for block in pool.get_new_blocks(9)]
    assert taken == [block.block_id for block in stock.get_new_blocks(9)]
    assert pool.null_block.block_id not in taken
    assert pool.get_num_free_blocks() == stock.get_num_free_blocks() == 0
    queue.check_integrity()


def test_replaced_queue_leaves_no_links_in_the_blocks() -> None:
    pool = make_used_pool()
    queue = replace_queue(pool, LruEvictor(), lambda: 0.0)
    links = {(block.prev_free_block, block.next_free_block) for block in queue.get_all_free_blocks()}
    assert links == {(None, None)}


@pytest.mark.parametrize("blocks", [[object()], 3, [KVCacheBlock(99)], [KVCacheBlock(-1)], [KVCacheBlock(2**40)]])
def test_wrong_blocks_are_refused_without_effect(blocks: Any) -> None:
    queue, ours = make_queue(LruEvictor())
    for call in (queue.append_n, queue.prepend_n):
        with pytest.raises((AttributeError, TypeError, ValueError)):
            call(blocks)
    with pytest.raises((AttributeError, RuntimeError)):
        queue.remove(blocks[0] if isinstance(blocks, list) else blocks)
    assert queue.get_all_free_blocks() == ours[2:]


def test_a_block_freed_twice_is_refused() -> None:
    queue, ours = make_queue(LruEvictor())
    with pytest.raises(ValueError, match="block 2 is free already"):
        queue.append_n([ours[1], ours[2]])
    assert queue.get_all_free_blocks() == ours[2:]


def test_errors_of_a_python_evictor_or_clock_come_through() -> None:
    class Failing(PythonLru):
        def remove(self, block_id: int) -> None:
            raise OSError(f"broken by {block_id}")

    def no_time() -> float:
        raise OSError("no time")

    queue, ours = make_queue(Failing())
    with pytest.raises(OSError, match="broken by 2"):
        queue.remove(ours[2])
    queue.clock = no_time
    with pytest.raises(OSError, match="no time"):
        queue.popleft_n(1)


def test_a_queue_goes_with_its_pool() -> None:
    # The pool has the queue, the queue the blocks, and each block the pool.
    pool = BlockPool(num_gpu_blocks=8, enable_caching=True, hash_block_size=16)
    queue = weakref.ref(replace_queue(pool, LruEvictor(), lambda: 0.0))
    gc.collect()
    assert queue() is not None
    del pool
    gc.collect()
    assert queue() is None
