"""The CPU cache: vLLM's block pool, with victims chosen as on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from agentcache._evictor import UNKNOWN_REQUEST, Evictor, FreeContext
from agentcache.engine.blocks.block_queue import BlockQueue, Evictions, replace_queue
from agentcache.engine.blocks.frees import WORTHLESS_S
from agentcache.engine.cached_blocks import WatchedBlockMap, watch_cache
from agentcache.engine.vllm.types import BlockHashWithGroupId, BlockPool, KVCacheBlock

# Multiplies the value of a block that is on the GPU as well, which may lose it before it is stored again: it loses a
# tenth or so of what is not stored.
_COPY_FACTOR = 0.1


class LastUse(NamedTuple):
    """What is known of the request that used a block last, and when it freed the block, in seconds."""

    context: FreeContext
    freed_s: float


UNKNOWN_USE = LastUse(UNKNOWN_REQUEST, 0.0)
# Of blocks that nothing goes on from any more.
LEFT = LastUse(FreeContext(superseded=True), 0.0)


class StoredBlock(NamedTuple):
    """A block of the CPU cache that a copy fills, with what its evictor is to know."""

    block: KVCacheBlock
    key: BlockHashWithGroupId
    tokens: int
    last_use: LastUse


@dataclass(slots=True, eq=False)
class Store:
    """Copies of one step, from the GPU's `blocks` to as many of the CPU cache."""

    blocks: Sequence[KVCacheBlock]
    copies: Sequence[StoredBlock]
    abandoned: bool = False


class HostCache:
    """Blocks are in use while a copy reads or writes them, and free otherwise."""

    def __init__(
        self,
        num_blocks: int,
        hash_block_size: int,
        evictor: Evictor,
        clock: Callable[[], float],
        *,
        is_useful: Callable[[int], bool],
        on_lost: Callable[[Sequence[KVCacheBlock]], None],
    ) -> None:
        """Make an empty cache. vLLM's pool keeps one of the blocks as a placeholder.

        `is_useful` tells of a finish class whether blocks of such requests are worth a copy. `on_lost` gets the blocks
        that go from here, before they lose their hashes.
        """
        self._is_useful = is_useful
        self._pool = BlockPool(num_blocks, enable_caching=True, hash_block_size=hash_block_size)
        self._queue: BlockQueue = replace_queue(self._pool, evictor, clock, notes_reuse=False, on_taken=on_lost)
        self.map: WatchedBlockMap = watch_cache(self._pool)
        # Blocks that are on the GPU as well, or were when they were read, or are worth nothing until they are again.
        self._copied: set[int] = set()
        # By the block's id, as they were when it was put here.
        self._last_uses: list[LastUse] = [UNKNOWN_USE] * num_blocks

    @property
    def used_blocks(self) -> int:
        """Return how many blocks hold KV."""
        return len(self.map)

    @property
    def evictions(self) -> Evictions:
        """Return what was evicted from here to make room."""
        return self._queue.evictions["capacity"]

    def reserve(self, count: int) -> list[KVCacheBlock]:
        """Take up to `count` blocks to copy to: empty ones, then those that are worth least."""
        blocks = self._pool.get_new_blocks(min(count, self._pool.get_num_free_blocks()))
        self._copied.difference_update(block.block_id for block in blocks)
        return blocks

    def put(self, stored: Sequence[StoredBlock]) -> None:
        """Take over blocks that copies have filled. What was stored twice is kept once."""
        for last_use, group in groupby(stored, key=lambda one: one.last_use):
            blocks = []
            for one in group:
                if not self.map.holds(one.key):
                    self._pool._insert_block_hash(one.key, one.block, num_tokens=one.tokens)
                self._last_uses[one.block.block_id] = last_use
                blocks.append(one.block)
            self._free_alone(blocks, last_use)

    def give_back(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Take back blocks that no copy has filled."""
        self._pool.free_blocks(blocks)

    def begin_reading(self, keys: Sequence[BlockHashWithGroupId]) -> list[KVCacheBlock]:
        """Return the blocks with these keys, all of which must be held; they stay until `end_reading`."""
        blocks = self.map.find_blocks(keys)
        self._pool.touch(blocks)
        return blocks

    def last_use_of(self, block: KVCacheBlock) -> LastUse:
        """Return who used the block last when it was stored."""
        return self._last_uses[block.block_id]

    def end_reading(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Note that blocks were copied to the GPU: until it loses them they are worth less."""
        self._copied.update(block.block_id for block in blocks)
        # By their own job: freed by another, they would go back to what that has here alone.
        for last_use, group in groupby(blocks, key=self.last_use_of):
            with self._queue.free_with(last_use.context.of_copy(_COPY_FACTOR)):
                self._pool.free_blocks(list(group))

    def end_reading_in_vain(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Note that blocks were not copied to the GPU after all: they are here alone."""
        self._copied.difference_update(block.block_id for block in blocks)
        for last_use, group in groupby(blocks, key=self.last_use_of):
            self._free_alone(list(group), last_use)

    def note_hits(self, keys: Iterable[BlockHashWithGroupId]) -> None:
        """Note that a request uses what the GPU has of these: until it loses them they are worth less here."""
        here = self.map.find_blocks(list(filter(self.map.holds, keys)))
        blocks = [block for block in here if not block.ref_cnt and block.block_id not in self._copied]
        self._pool.touch(blocks)
        self.end_reading(blocks)

    def give_up(self, keys: Iterable[BlockHashWithGroupId]) -> None:
        """Note that nothing goes on from these any more: until the GPU loses them after another use they go first."""
        here = self.map.find_blocks(list(filter(self.map.holds, keys)))
        blocks = [block for block in here if not block.ref_cnt]
        self._copied.update(block.block_id for block in blocks)
        for block in blocks:
            self._last_uses[block.block_id] = LEFT
        self._queue.reprice(blocks, WORTHLESS_S)

    def _free_alone(self, blocks: Sequence[KVCacheBlock], last_use: LastUse) -> None:
        context = last_use.context
        if not self._is_useful(context.finish_class):
            context = FreeContext(superseded=True)
        with self._queue.free_with(context, last_use.freed_s):
            self._pool.free_blocks(blocks)

    def renew(self, losses: Iterable[tuple[BlockHashWithGroupId, LastUse]]) -> None:
        """Note that the GPU loses blocks that are here, or is about to: they are worth what their last uses say."""
        for last_use, group in groupby(losses, key=itemgetter(1)):
            here = self.map.find_blocks([key for key, _ in group])
            blocks = [block for block in here if not block.ref_cnt and block.block_id in self._copied]
            self._copied.difference_update(block.block_id for block in blocks)
            for block in blocks:
                self._last_uses[block.block_id] = last_use
            self._pool.touch(blocks)
            self._free_alone(blocks, last_use)

    def reset(self) -> None:
        """Forget everything. Blocks that copies write to stay in use; none may be read."""
        self._pool.evict_blocks({block.block_id for block in self._pool.blocks if block.block_hash is not None})
        self._queue.forget_kv()
        self._copied.clear()

    def find_used(self) -> set[int]:
        """Find the blocks that copies read or write, by their id."""
        return {block.block_id for block in self._pool.blocks if block.ref_cnt and not block.is_null}

    def check_integrity(self) -> None:
        """Raise IntegrityError when the free blocks and those in use disagree."""
        self._queue.check_integrity()
