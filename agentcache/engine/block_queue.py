"""The free block queue of vLLM's block pool, with the victims chosen by an evictor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import dropwhile, groupby, islice

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from agentcache.errors import IntegrityError
from agentcache.policy.evictor import Evictor


class BlockQueue:
    """Stands in for `FreeKVCacheBlockQueue`: the same methods with the same meaning.

    vLLM prepends blocks without a hash (nothing to reuse) and appends hashed ones in eviction order; both go to the
    evictor, which alone knows the order. Blocks are handed over as objects and known to the evictor by their id.
    """

    def __init__(
        self,
        blocks: Sequence[KVCacheBlock],
        free: Sequence[KVCacheBlock],
        evictor: Evictor,
        clock: Callable[[], float],
    ) -> None:
        """`blocks[i]` is the block with id i; `free` are the free ones, next victim first. `clock` gives seconds."""
        self._blocks = blocks
        self._evictor = evictor
        self.clock = clock
        # When each block was freed, and the blocks removed since the last batch call.
        self._freed_s = [0.0] * len(blocks)
        self._removed: list[int] = []
        for block in free:
            block.prev_free_block = block.next_free_block = None
        # Before the first request no block holds anything.
        evictor.add_empty([block.block_id for block in free])

    @property
    def num_free_blocks(self) -> int:
        return len(self._evictor)

    def popleft(self) -> KVCacheBlock:
        if not len(self._evictor):
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        now_s = self.clock()
        self._report_reuse(now_s)
        blocks = self._blocks
        return [blocks[block_id] for block_id in self._evictor.evict(n, now_s)]

    def remove(self, block: KVCacheBlock) -> None:
        block_id = block.block_id
        try:
            self._evictor.remove(block_id)
        except KeyError:
            raise RuntimeError(f"remove() called on an invalid block: {block}") from None
        self._removed.append(block_id)

    def append(self, block: KVCacheBlock) -> None:
        self.append_n([block])

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        if blocks:
            # A block without a hash comes here only from a connector that may still read it: nothing to recompute.
            positions = [block.block_hash_num_tokens or 0 for block in blocks]
            block_ids = [block.block_id for block in blocks]
            now_s = self.clock()
            self._report_reuse(now_s)
            for block_id in block_ids:
                self._freed_s[block_id] = now_s
            self._evictor.add(block_ids, positions, now_s)

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._evictor.add_empty([block.block_id for block in blocks])

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        return list(self.iter_blocks_after(None))

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:
        """Free blocks in eviction order, behind `cursor` if it is given and free. Valid until the next change."""
        order = self._evictor.order(self.clock())
        if cursor is not None:
            order = islice(dropwhile(lambda block_id: block_id != cursor.block_id, order), 1, None)
        return (self._blocks[block_id] for block_id in order)

    def _report_reuse(self, now_s: float) -> None:
        """Late by less than a step: a removal is followed by the allocation for the same request.

        Blocks freed together are reused together, one after the other: that is one reuse.
        """
        if self._removed:
            for freed_s, _ in groupby(self._freed_s[block_id] for block_id in self._removed):
                self._evictor.observe_reuse(now_s - freed_s)
            self._removed.clear()

    def check_integrity(self) -> None:
        """Raise IntegrityError unless the free blocks are exactly the unreferenced ones, each once."""
        self._evictor.check_integrity()
        free = [block.block_id for block in self.get_all_free_blocks()]
        if len(set(free)) != len(free) or len(free) != self.num_free_blocks:
            raise IntegrityError(f"{self.num_free_blocks} blocks are free, the order lists {len(free)}: {free[:20]}")
        idle = {block.block_id for block in self._blocks if block.ref_cnt == 0 and not block.is_null}
        if wrong := idle.symmetric_difference(free):
            raise IntegrityError(f"blocks neither free nor referenced, or both: {sorted(wrong)[:20]}")


def replace_queue(pool: BlockPool, evictor: Evictor, clock: Callable[[], float]) -> BlockQueue:
    """Put a queue that asks `evictor` in place of the pool's own, with the same free blocks in the same order."""
    queue = BlockQueue(pool.blocks, pool.free_block_queue.get_all_free_blocks(), evictor, clock)
    pool.free_block_queue = queue  # type: ignore[assignment]
    return queue
