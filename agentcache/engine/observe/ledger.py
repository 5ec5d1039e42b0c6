"""Remembers which blocks were evicted and not computed again since: when, for whom, and how both caches lost them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count
from typing import NamedTuple

from agentcache.engine.observe.views import LossCause
from agentcache.engine.segments.cached_blocks import KV_CACHE_GROUP
from agentcache.engine.vllm.types import BlockHash, BlockHashWithGroupId, KVCacheBlock, make_block_hash_with_group_id

# Of a block's hash: enough to tell blocks apart.
_HASH_BYTES = 8
# Evicted blocks that are remembered, for each block of the GPU's cache and in all. One takes about 200 bytes.
_CACHES = 4
_MAX_BLOCKS = 500_000


class Eviction(NamedTuple):
    """How a block was evicted from the last cache that had it.

    `taker` is the session of the request that got its room, "" if unknown, and for the CPU cache, whose room goes to
    copies for several sessions. `cause` is None where there is one cache, and while the other still has the block.
    `number` is that of the eviction from the GPU.
    """

    number: int
    time_s: float
    taker: str
    cause: LossCause | None = None


class Ledger:
    """Remembers of both caches what the GPU evicted last, four times what it has room for. O(1) a block.

    What a CPU cache does is told by its own parts. `is_on_host` tells whether it has a block, `is_copying` whether a
    block of the GPU, by its id, is being copied to it.
    """

    def __init__(
        self,
        num_blocks: int,
        clock: Callable[[], float],
        is_on_host: Callable[[BlockHashWithGroupId], bool] | None = None,
        is_copying: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Take the size of the GPU's cache. Without `is_on_host` there is no other."""
        self._capacity = min(_CACHES * num_blocks, _MAX_BLOCKS)
        self._clock = clock
        self._is_on_host = is_on_host
        self._is_copying = is_copying
        self._numbers = count()
        self._evicted: dict[bytes, Eviction] = {}
        # Number, time and blocks of each eviction from the GPU, the oldest first.
        self._batches: deque[tuple[int, float, list[bytes]]] = deque()
        self._noted = 0
        # By the block's id on the GPU, what has befallen what it holds, where something has.
        self._marks: dict[int, LossCause] = {}
        self.forgotten_s = -math.inf
        """When the latest eviction was that is forgotten."""

    def clear(self) -> None:
        """Forget all: the caches were emptied."""
        self._evicted.clear()
        self._batches.clear()
        self._marks.clear()
        self._noted = 0

    def ignore_host(self) -> None:
        """Forget what the CPU cache did, of which nothing is told from now on."""
        self._is_on_host = None
        self._marks.clear()
        self._evicted = {key: eviction._replace(cause=None) for key, eviction in self._evicted.items()}

    def note_evicted(self, blocks: Iterable[KVCacheBlock], taker: str) -> None:
        """Note that the GPU loses these blocks now, which still have their hashes, for a request of this session."""
        number, now_s = next(self._numbers), self._clock()
        keys = []
        evictions: dict[LossCause | None, Eviction] = {}
        for block in blocks:
            mark = self._marks.pop(block.block_id, None)
            if (block_hash := block.block_hash) is None:
                continue
            cause = self._find_cause(block, block_hash, mark)
            if cause not in evictions:
                evictions[cause] = Eviction(number, now_s, "" if cause == "evicted" else taker, cause)
            keys.append(key := block_hash[:_HASH_BYTES])
            self._evicted[key] = evictions[cause]
        if keys:
            self._batches.append((number, now_s, keys))
            self._noted += len(keys)
        while self._noted > self._capacity:
            self._forget_oldest()

    def _find_cause(
        self, block: KVCacheBlock, block_hash: BlockHashWithGroupId, mark: LossCause | None
    ) -> LossCause | None:
        if self._is_on_host is None or self._is_on_host(block_hash):
            return None
        return "overwritten" if mark != "evicted" and self._is_copying(block.block_id) else mark or "never chosen"

    def _forget_oldest(self) -> None:
        number, self.forgotten_s, keys = self._batches.popleft()
        self._noted -= len(keys)
        for key in keys:
            # It may have been computed, and evicted again later.
            if (eviction := self._evicted.get(key)) is not None and eviction.number == number:
                del self._evicted[key]

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

    def note_copies_lost(self, keys: Iterable[BlockHashWithGroupId], on_gpu: Collection[KVCacheBlock]) -> None:
        """Note that the CPU cache loses these; those that are `on_gpu` are there still."""
        self._marks.update((block.block_id, "evicted") for block in on_gpu)
        kept = {block.block_hash for block in on_gpu}
        now_s = self._clock()
        for block_hash in keys:
            key = block_hash[:_HASH_BYTES]
            if block_hash not in kept and (eviction := self._evicted.get(key)) is not None:
                self._evicted[key] = Eviction(eviction.number, now_s, "", "evicted")

    def take(self, hashes: Sequence[bytes], missed: Iterable[int]) -> dict[int, Eviction]:
        """Find those of a prompt's missed blocks that were evicted, by their index; they are computed again now."""
        if not self._evicted:
            return {}
        pop = self._evicted.pop
        found = ((index, pop(hashes[index][:_HASH_BYTES], None)) for index in missed)
        return {index: self._look(hashes[index], eviction) for index, eviction in found if eviction is not None}

    def _look(self, block_hash: bytes, eviction: Eviction) -> Eviction:
        if self._is_on_host is None:
            return eviction
        key = make_block_hash_with_group_id(BlockHash(block_hash), KV_CACHE_GROUP)
        return eviction._replace(cause="not fetched") if self._is_on_host(key) else eviction
