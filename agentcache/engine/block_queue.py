"""The free block queue of vLLM's block pool, with the victims chosen by an evictor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import dropwhile, islice

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from agentcache.errors import IntegrityError
from agentcache.policy.evictor import Evictor


class BlockQueue:
    """Stands in for `FreeKVCacheBlockQueue`: the same methods with the same meaning.

    vLLM prepends blocks without a hash (nothing to reuse) and appends hashed ones in eviction order; both go to the
    evictor, which alone knows the order. Blocks are handed over as objects and known to the evictor by their id.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock], free: Sequence[KVCacheBlock], evictor: Evictor) -> None:
        """`blocks[i]` is the block with id i; `free` are the free ones, next victim first."""
        self._blocks = blocks
        self._evictor = evictor
        for block in free:
            block.prev_free_block = block.next_free_block = None
        evictor.add([block.block_id for block in free])

    @property
    def num_free_blocks(self) -> int:
        return len(self._evictor)

    def popleft(self) -> KVCacheBlock:
        if not len(self._evictor):
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        blocks = self._blocks
        return [blocks[block_id] for block_id in self._evictor.evict(n)]

    def remove(self, block: KVCacheBlock) -> None:
        try:
            self._evictor.remove(block.block_id)
        except KeyError:
            raise RuntimeError(f"remove() called on an invalid block: {block}") from None

    def append(self, block: KVCacheBlock) -> None:
        self._evictor.add([block.block_id])

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._evictor.add([block.block_id for block in blocks])

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._evictor.add_empty([block.block_id for block in blocks])

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        return list(self.iter_blocks_after(None))

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:
        """Free blocks in eviction order, behind `cursor` if it is given and free. Valid until the next change."""
        order = self._evictor.order()
        if cursor is not None:
            order = islice(dropwhile(lambda block_id: block_id != cursor.block_id, order), 1, None)
        return (self._blocks[block_id] for block_id in order)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless the free blocks are exactly the unreferenced ones, each once."""
        self._evictor.check_integrity()
        free = [block.block_id for block in self.get_all_free_blocks()]
        if len(set(free)) != len(free) or len(free) != self.num_free_blocks:
            raise IntegrityError(f"{self.num_free_blocks} blocks are free, the order lists {len(free)}: {free[:20]}")
        idle = {block.block_id for block in self._blocks if block.ref_cnt == 0 and not block.is_null}
        if wrong := idle.symmetric_difference(free):
            raise IntegrityError(f"blocks neither free nor referenced, or both: {sorted(wrong)[:20]}")


def replace_queue(pool: BlockPool, evictor: Evictor) -> BlockQueue:
    """Put a queue that asks `evictor` in place of the pool's own, with the same free blocks in the same order."""
    queue = BlockQueue(pool.blocks, pool.free_block_queue.get_all_free_blocks(), evictor)
    pool.free_block_queue = queue  # type: ignore[assignment]
    return queue
