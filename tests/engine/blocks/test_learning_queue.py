"""What an evictor that learns is told by the block queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import pytest
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from agentcache._evictor import FreeContext, ReturnTimeEvictor
from agentcache.engine.blocks.block_queue import BlockQueue
from agentcache.policy.registry import Learning


def make_learning_queue() -> tuple[BlockQueue, list[KVCacheBlock], ReturnTimeEvictor]:
    """Eight blocks, of which none is free; each ends at token 16. The clock stands at 0 until it is set."""
    blocks = [KVCacheBlock(number) for number in range(8)]
    for block in blocks:
        block._block_hash_num_tokens = 16
    evictor = ReturnTimeEvictor(
        num_blocks=8, slope_s=1e-9, base_s=2e-5, floor_s=1e-7, **asdict(Learning(prior_returns=0.01))
    )
    return BlockQueue(blocks, [], evictor, lambda: 0.0), blocks, evictor


def free_and(
    queue: BlockQueue, blocks: list[KVCacheBlock], finish_class: int, gap_s: float, leave: Callable[[], object]
) -> None:
    """Ten times: two blocks are freed, and after `gap_s` they leave by `leave`, or are evicted."""
    for turn in range(10):
        freed_s, left_s = 100.0 * turn, 100.0 * turn + gap_s
        queue.clock = lambda freed_s=freed_s: freed_s  # type: ignore[misc]
        with queue.free_with(FreeContext(finish_class=finish_class)):
            queue.append_n(blocks[:2])
        queue.clock = lambda left_s=left_s: left_s  # type: ignore[misc]
        leave()
        queue.popleft_n(queue.num_free_blocks)


def remove_all(queue: BlockQueue, blocks: list[KVCacheBlock]) -> None:
    for block in blocks:
        queue.remove(block)


@pytest.mark.parametrize("reset", [False, True])
def test_a_finish_class_learns_returns_and_a_reset_is_none(reset: bool) -> None:
    queue, blocks, evictor = make_learning_queue()
    free_and(queue, blocks, 1, 10.0, queue.forget_kv if reset else partial(remove_all, queue, blocks[:2]))
    free_and(queue, blocks, 2, 90.0, lambda: None)
    queue.clock = lambda: 5000.0
    blocks[5]._block_hash_num_tokens = 20_000
    for block, finish_class in ((blocks[4], 1), (blocks[5], 2)):
        with queue.free_with(FreeContext(finish_class=finish_class)):
            queue.append_n([block])
    # Block 5 is dearer, yet of a class that never came back; that of block 4 did so after 10 s, or did not either.
    assert list(evictor.order(5009.0)) == ([4, 5] if reset else [5, 4])
