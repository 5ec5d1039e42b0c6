"""What our queue of free blocks, which stands in the place of vLLM's, does as that does."""

from __future__ import annotations

import pytest
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock


@pytest.fixture
def blocks() -> list[KVCacheBlock]:
    return [KVCacheBlock(number) for number in range(8)]


@pytest.fixture
def queue(blocks: list[KVCacheBlock]) -> FreeKVCacheBlockQueue:
    """The first five are free."""
    return FreeKVCacheBlockQueue(blocks[:5])


def ids(blocks: list[KVCacheBlock]) -> list[int]:
    return [block.block_id for block in blocks]


def test_victims_come_from_the_front_or_lru_differs(queue: FreeKVCacheBlockQueue) -> None:
    assert queue.popleft().block_id == 0
    assert ids(queue.popleft_n(2)) == [1, 2]
    assert (queue.num_free_blocks, ids(queue.get_all_free_blocks())) == (2, [3, 4])


def test_freed_blocks_go_to_the_back_or_lru_differs(queue: FreeKVCacheBlockQueue, blocks: list[KVCacheBlock]) -> None:
    queue.append_n(blocks[5:7])
    queue.append(blocks[7])
    assert ids(queue.get_all_free_blocks()) == list(range(8))


def test_prepended_go_first_in_order_or_evictions_differ(
    queue: FreeKVCacheBlockQueue, blocks: list[KVCacheBlock]
) -> None:
    queue.prepend_n(blocks[5:7])
    assert ids(queue.get_all_free_blocks())[:3] == [5, 6, 0]


def test_any_free_block_can_be_removed_or_hits_are_lost(
    queue: FreeKVCacheBlockQueue, blocks: list[KVCacheBlock]
) -> None:
    queue.remove(blocks[2])
    assert (queue.num_free_blocks, ids(queue.get_all_free_blocks())) == (4, [0, 1, 3, 4])


def test_a_walk_goes_on_at_its_cursor_or_copies_stall(queue: FreeKVCacheBlockQueue, blocks: list[KVCacheBlock]) -> None:
    assert ids(list(queue.iter_blocks_after(None))) == [0, 1, 2, 3, 4]
    assert ids(list(queue.iter_blocks_after(blocks[2]))) == [3, 4]
