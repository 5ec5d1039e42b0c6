"""Stands in for the free block queue of vLLM's block pool: an evictor chooses the victims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import dropwhile, islice

from agentcache._evictor import UNKNOWN_REQUEST, Evictor, FreeContext, FreeQueue
from agentcache.engine.vllm.patches import replace
from agentcache.engine.vllm.types import BlockPool, KVCacheBlock
from agentcache.errors import IntegrityError


@dataclass(frozen=True, slots=True)
class Evictions:
    """Blocks whose reusable KV was lost for one cause."""

    blocks: int
    # From when each block was freed to when its KV was lost, summed.
    age_s: float


def _ignore(taken: Sequence[KVCacheBlock]) -> None:
    """Let blocks go unnoticed."""


class BlockQueue(FreeQueue):
    """Stands in for `FreeKVCacheBlockQueue`: the same methods with the same meaning.

    vLLM prepends blocks without a hash (nothing to reuse) and appends hashed ones in eviction order; both go to the
    evictor, which alone knows the order. Blocks are handed over as objects and known to the evictor by their id. The
    methods called for every block are compiled (`csrc/bindings/python_queue.hpp`).

    Blocks know their pool and that its queue, so they are kept here, where Python's garbage collector sees the circle.
    """

    def __init__(
        self,
        blocks: Sequence[KVCacheBlock],
        free: Sequence[KVCacheBlock],
        evictor: Evictor,
        clock: Callable[[], float],
        *,
        notes_reuse: bool = True,
        on_taken: Callable[[Sequence[KVCacheBlock]], None] = _ignore,
    ) -> None:
        """Take over the free blocks.

        `blocks[i]` is the block with id i; `free` are the free ones, next victim first. `clock` gives seconds.

        Without `notes_reuse` somebody else tells the evictor when requests come back. `on_taken` gets the blocks that
        are taken, before they lose their hashes.
        """
        super().__init__(
            num_blocks=len(blocks),
            evictor=evictor,
            notes_reuse=notes_reuse,
            block_type=KVCacheBlock,
            id_attribute="block_id",
            # The property of this name without the underscore is a Python function: slower than all else here.
            position_attribute="_block_hash_num_tokens",
        )
        self.clock = clock
        self._on_taken = on_taken
        self._blocks = list(blocks)
        self._freed_s: float | None = None
        self._noted: list[KVCacheBlock] | None = None
        self._evictor = evictor
        for block in free:
            block.prev_free_block = block.next_free_block = None
        # Before the first request no block holds anything.
        self.prepend_n(free)

    @contextmanager
    def free_with(self, context: FreeContext, freed_s: float | None = None) -> Iterator[None]:
        """Mark what is freed inside with `context`: what is known of the request that used it.

        With `freed_s` the blocks count as freed then, not now: they come from another cache.
        """
        self.context, self._freed_s = context, freed_s
        try:
            yield
        finally:
            self.context, self._freed_s = UNKNOWN_REQUEST, None

    @contextmanager
    def note_freed(self) -> Iterator[list[KVCacheBlock]]:
        """List the blocks with reusable KV that are freed inside."""
        noted: list[KVCacheBlock] = []
        self._noted = noted
        try:
            yield noted
        finally:
            self._noted = None

    def append(self, block: KVCacheBlock) -> None:
        """Free one block."""
        self.append_n([block])

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Free blocks with reusable KV, in eviction order."""
        if blocks:
            if self._noted is not None:
                self._noted += blocks
            self.free_n(blocks, self.clock(), self._freed_s)

    def popleft(self) -> KVCacheBlock:
        """Take the next victim. Raises ValueError if no block is free."""
        if not self.num_free_blocks:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the next `n` victims."""
        taken = self.take_n(self._blocks, n, self.clock())
        self._on_taken(taken)
        return taken

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """List the free blocks in eviction order."""
        return self.list_free(self._blocks, self.clock())

    def list_victims(self, count: int) -> list[KVCacheBlock]:
        """List the next `count` victims, or all free blocks if there are fewer."""
        return self.list_first(self._blocks, count, self.clock())

    def reprice(self, blocks: Sequence[KVCacheBlock], cost_s: float) -> None:
        """Set what the loss of blocks costs until they are freed anew, in seconds."""
        self._evictor.reprice([block.block_id for block in blocks], cost_s)

    def forget_kv(self) -> None:
        """Note that no free block holds KV any more; all stay free, in the order in which they would have gone."""
        self.forget_kv_at(self.clock())

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:
        """Yield free blocks in eviction order, behind `cursor` if it is given and free. Valid until the next change."""
        free = iter(self.get_all_free_blocks())
        if cursor is None:
            return free
        return islice(dropwhile(lambda block: block is not cursor, free), 1, None)

    @property
    def evictions(self) -> dict[str, Evictions]:
        """Evictions by cause since the start: "capacity", for new tokens; "reset", as the prefix cache was reset."""
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
    pool: BlockPool,
    evictor: Evictor,
    clock: Callable[[], float],
    *,
    notes_reuse: bool = True,
    on_taken: Callable[[Sequence[KVCacheBlock]], None] = _ignore,
) -> BlockQueue:
    """Put a queue that asks `evictor` in place of the pool's own, with the same free blocks in the same order."""
    free = pool.free_block_queue.get_all_free_blocks()
    queue = BlockQueue(pool.blocks, free, evictor, clock, notes_reuse=notes_reuse, on_taken=on_taken)
    replace(pool, "free_block_queue", queue)
    return queue
