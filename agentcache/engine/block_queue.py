"""The free block queue of vLLM's block pool, with the victims chosen by an evictor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile, islice

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from agentcache import _evictor
from agentcache.errors import IntegrityError
from agentcache.policy.compiled import compile_evictor
from agentcache.policy.evictor import Evictor


@dataclass(frozen=True, slots=True)
class Evictions:
    """Blocks whose reusable KV was lost for one cause."""

    blocks: int
    # From when each block was freed to when its KV was lost, summed.
    age_s: float

    @property
    def mean_age_s(self) -> float | None:
        """None before any."""
        return self.age_s / self.blocks if self.blocks else None


class BlockQueue(_evictor.FreeQueue):
    """Stands in for `FreeKVCacheBlockQueue`: the same methods with the same meaning.

    vLLM prepends blocks without a hash (nothing to reuse) and appends hashed ones in eviction order; both go to the
    evictor, which alone knows the order. Blocks are handed over as objects and known to the evictor by their id. The
    methods called for every block are compiled (`csrc/python_queue.hpp`).
    """

    def __init__(
        self,
        blocks: Sequence[KVCacheBlock],
        free: Sequence[KVCacheBlock],
        evictor: Evictor,
        clock: Callable[[], float],
        *,
        notes_reuse: bool = True,
    ) -> None:
        """`blocks[i]` is the block with id i; `free` are the free ones, next victim first. `clock` gives seconds.

        Without `notes_reuse` somebody else tells the evictor when requests come back.
        """
        learns = notes_reuse and type(evictor).observe_reuse is not Evictor.observe_reuse
        super().__init__(
            blocks=list(blocks),
            evictor=compile_evictor(evictor),
            clock=clock,
            observe_reuse=evictor.observe_reuse if learns else None,
            block_type=KVCacheBlock,
            id_attribute="block_id",
            # The property of this name without the underscore is a Python function: slower than all else here.
            position_attribute="_block_hash_num_tokens",
        )
        self._blocks = blocks
        self._evictor = evictor
        for block in free:
            block.prev_free_block = block.next_free_block = None
        # Before the first request no block holds anything.
        self.prepend_n(free)

    def popleft(self) -> KVCacheBlock:
        if not self.num_free_blocks:
            raise ValueError("No free blocks available")
        block: KVCacheBlock = self.popleft_n(1)[0]
        return block

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:
        """Free blocks in eviction order, behind `cursor` if it is given and free. Valid until the next change."""
        free = iter(self.get_all_free_blocks())
        if cursor is None:
            return free
        return islice(dropwhile(lambda block: block is not cursor, free), 1, None)

    @property
    def evictions(self) -> dict[str, Evictions]:
        """By cause, since the start: "capacity", given away for new tokens; "reset", the prefix cache was reset."""
        return {"capacity": Evictions(*self.by_capacity), "reset": Evictions(*self.by_reset)}

    def check_integrity(self) -> None:
        """Raise IntegrityError unless the free blocks are exactly the unreferenced ones, each once."""
        self._evictor.check_integrity()
        free = [block.block_id for block in self.get_all_free_blocks()]
        if len(set(free)) != len(free) or len(free) != self.num_free_blocks:
            raise IntegrityError(f"{self.num_free_blocks} blocks are free, the order lists {len(free)}: {free[:20]}")
        idle = {block.block_id for block in self._blocks if block.ref_cnt == 0 and not block.is_null}
        if wrong := idle.symmetric_difference(free):
            raise IntegrityError(f"blocks neither free nor referenced, or both: {sorted(wrong)[:20]}")


def replace_queue(
    pool: BlockPool, evictor: Evictor, clock: Callable[[], float], *, notes_reuse: bool = True
) -> BlockQueue:
    """Put a queue that asks `evictor` in place of the pool's own, with the same free blocks in the same order."""
    free = pool.free_block_queue.get_all_free_blocks()
    queue = BlockQueue(pool.blocks, free, evictor, clock, notes_reuse=notes_reuse)
    pool.free_block_queue = queue  # type: ignore[assignment]
    return queue
