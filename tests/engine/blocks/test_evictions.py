"""What the block queue tells of the blocks that pass through it: reuse to the evictor, evictions to whoever asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from python_lru import PythonLru
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId, KVCacheBlock

from agentcache._evictor import AsymCacheEvictor, Evictor, LruEvictor
from agentcache.engine.blocks.block_queue import Evictions, replace_queue


class ListeningEvictor(PythonLru):
    """Writes down what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.added: list[tuple[list[int], list[int], float]] = []
        self.idle_s: list[float] = []

    def add(self, block_ids: Sequence[int], positions: Sequence[int], now_s: float, factor: float = 1.0) -> None:
        self.added.append((list(block_ids), list(positions), now_s))
        super().add(block_ids, positions, now_s, factor)

    def observe_reuse(self, idle_s: float) -> None:
        self.idle_s.append(idle_s)


def test_evictor_hears_positions_and_times_and_each_reuse_once() -> None:
    now_s = [100.0]
    evictor = ListeningEvictor()
    pool = BlockPool(num_gpu_blocks=8, enable_caching=True, hash_block_size=16)
    queue = replace_queue(pool, evictor, lambda: now_s[0])
    blocks = queue.popleft_n(4)
    for number, block in enumerate(blocks):
        block.set_block_hash(BlockHashWithGroupId(bytes([number])), num_tokens=16 * (number + 1))
    queue.append_n(blocks[2:])
    now_s[0] = 103.0
    queue.append_n(blocks[:2])
    ids = [block.block_id for block in blocks]
    assert evictor.added == [(ids[2:], [48, 64], 100.0), (ids[:2], [16, 32], 103.0)]
    now_s[0] = 110.0
    for block in blocks:
        queue.remove(block)
    assert evictor.idle_s == []
    queue.popleft_n(1)
    assert evictor.idle_s == [7.0, 10.0]
    queue.popleft_n(1)
    assert evictor.idle_s == [7.0, 10.0], "each reuse is told once"


def hash_blocks(blocks: Sequence[KVCacheBlock]) -> None:
    for number, block in enumerate(blocks):
        block.reset_hash()
        block.set_block_hash(BlockHashWithGroupId(bytes([number])), num_tokens=16 * (number + 1))


def test_blocks_without_kv_are_no_reuse() -> None:
    evictor = ListeningEvictor()
    pool = BlockPool(num_gpu_blocks=4, enable_caching=True, hash_block_size=16)
    queue = replace_queue(pool, evictor, lambda: 5.0)
    queue.remove(pool.blocks[1])
    queue.append(pool.blocks[1])  # As a connector does that may still read it: without a hash.
    assert evictor.added == [([1], [0], 5.0)]
    queue.remove(pool.blocks[1])
    queue.popleft_n(2)
    assert evictor.idle_s == []
    assert queue.evictions["capacity"] == Evictions(blocks=0, age_s=0.0)


def test_evictions_are_counted_by_cause_with_their_age() -> None:
    now_s = [100.0]
    pool = BlockPool(num_gpu_blocks=8, enable_caching=True, hash_block_size=16)
    queue = replace_queue(pool, LruEvictor(), lambda: now_s[0])
    none = Evictions(blocks=0, age_s=0.0)
    assert queue.evictions == {"capacity": none, "reset": none}
    blocks = queue.popleft_n(6)
    hash_blocks(blocks)
    queue.append_n(blocks[:2])
    now_s[0] = 103.0
    queue.append_n(blocks[2:5])
    now_s[0] = 110.0
    queue.remove(blocks[1])
    # One that never held anything, and then the two that were freed first.
    assert queue.popleft_n(3) == [pool.blocks[7], blocks[0], blocks[2]]
    assert queue.evictions == {"capacity": Evictions(blocks=2, age_s=17.0), "reset": none}
    queue.prepend_n([pool.blocks[7]])
    now_s[0] = 113.0
    queue.forget_kv()
    assert queue.get_all_free_blocks() == [pool.blocks[7], blocks[3], blocks[4]]
    queue.popleft_n(3)
    assert queue.evictions == {"capacity": Evictions(2, 17.0), "reset": Evictions(2, 20.0)}


@pytest.mark.parametrize(
    "make_evictor",
    [
        PythonLru,
        lambda: AsymCacheEvictor(
            num_blocks=8, alpha_s=14.4, beta_s=0.36, tau0_s=9.75, slope_s=1e-9, base_s=2e-5, floor_s=1e-7
        ),
    ],
)
def test_forgotten_blocks_are_evicted_in_the_same_order(make_evictor: Callable[[], Evictor]) -> None:
    pool = BlockPool(num_gpu_blocks=8, enable_caching=True, hash_block_size=16)
    queue = replace_queue(pool, make_evictor(), lambda: 1.0)
    blocks = queue.popleft_n(5)
    hash_blocks(blocks)
    queue.append_n(blocks[::-1])
    order = queue.get_all_free_blocks()
    queue.forget_kv()
    assert queue.get_all_free_blocks() == order
    queue.check_integrity()
    # They are empty: what is freed now with KV stays behind them, however cheap.
    (first,) = queue.popleft_n(1)
    hash_blocks([first])
    queue.append(first)
    assert queue.get_all_free_blocks() == [*order[1:], first]
