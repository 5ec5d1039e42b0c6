"""Notes how blocks were evicted from both caches, to explain why a prompt was computed again. O(1) a block."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence

from agentcache.engine.jobs.evicted_blocks import EvictedBlocks, Loss
from agentcache.engine.jobs.views import LossCause
from agentcache.engine.segments.cached_blocks import KV_CACHE_GROUP
from agentcache.engine.vllm.types import BlockHash, BlockHashWithGroupId, KVCacheBlock, make_block_hash_with_group_id


class Losses:
    """Remembers as many lost blocks as are remembered of those that the GPU evicts, and what befell those on the GPU.

    A block that the CPU cache has is not lost.
    """

    def __init__(
        self, num_blocks: int, is_on_host: Callable[[BlockHashWithGroupId], bool], clock: Callable[[], float]
    ) -> None:
        """Take the size of the GPU's cache."""
        self._is_on_host = is_on_host
        self._clock = clock
        self._lost: EvictedBlocks[Loss] = EvictedBlocks.of_cache(num_blocks)
        # By the block's id on the GPU, what has befallen what it holds, where something has.
        self._marks: dict[int, LossCause] = {}

    def clear(self) -> None:
        """Forget all that was lost."""
        self._lost.clear()
        self._marks.clear()

    def note_use(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Note that blocks of the GPU were used: they may be worth a copy now, and find room."""
        marks = self._marks
        for block in blocks:
            if marks and marks.get(block.block_id) != "evicted":
                marks.pop(block.block_id, None)

    def note_not_copied(self, blocks: Iterable[int], cause: LossCause) -> None:
        """Note why blocks of the GPU, by their id, were not copied when they were about to be evicted."""
        for block_id in blocks:
            if self._marks.get(block_id) != "evicted":
                self._marks[block_id] = cause

    def note_taken(self, blocks: Sequence[KVCacheBlock], copying: Collection[int]) -> None:
        """Note that the GPU loses these blocks now, which still have their hashes. `copying` are being copied."""
        lost: defaultdict[LossCause, list[BlockHashWithGroupId]] = defaultdict(list)
        for block in blocks:
            mark = self._marks.pop(block.block_id, None)
            key = block.block_hash
            if key is None or self._is_on_host(key):
                continue
            if mark != "evicted" and block.block_id in copying:
                mark = "overwritten"
            lost[mark or "never chosen"].append(key)
        self._note(lost)

    def note_copies_lost(self, keys: Iterable[BlockHashWithGroupId], on_gpu: Sequence[KVCacheBlock]) -> None:
        """Note that the CPU cache loses these; those that are `on_gpu` are there still."""
        self._marks.update((block.block_id, "evicted") for block in on_gpu)
        kept = {block.block_hash for block in on_gpu}
        self._note({"evicted": [key for key in keys if key not in kept]})

    def _note(self, lost: dict[LossCause, list[BlockHashWithGroupId]]) -> None:
        for cause, keys in lost.items():
            self._lost.note(keys, Loss(self._clock(), cause))

    def find(self, hashes: Sequence[bytes], evicted: Collection[int]) -> dict[int, Loss]:
        """Find how blocks of a prompt were lost that the GPU had evicted. They are computed again now.

        Args:
            hashes: Of all its blocks.
            evicted: The index of those that were evicted.

        Returns:
            By the index; without those that are forgotten.
        """
        found = self._lost.take(hashes, evicted)
        for index in evicted:
            if self._is_on_host(make_block_hash_with_group_id(BlockHash(hashes[index]), KV_CACHE_GROUP)):
                found[index] = Loss(0.0, "not fetched")
        return found
