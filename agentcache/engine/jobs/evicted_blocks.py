"""Remembers blocks that were evicted and not computed again since: when, and for whom."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from agentcache.engine.jobs.views import LossCause

# Of a block's hash: enough to tell blocks apart.
_HASH_BYTES = 8


class Eviction(NamedTuple):
    """Blocks that were evicted at once. `taker` is the session of the request that got their room, "" if unknown."""

    time_s: float
    taker: str


class Loss(NamedTuple):
    """How blocks were lost, and when they left the last cache that had them; 0 for those that one still has."""

    time_s: float
    cause: LossCause


# Takes the hashes of a prompt's blocks, and the index of those that were evicted and are computed again.
FindLosses = Callable[[Sequence[bytes], Collection[int]], Mapping[int, Loss]]


# Evicted blocks that are remembered, for each block of the cache and in all. One takes about 200 bytes.
_CACHES = 4
_MAX_BLOCKS = 500_000

# What is noted of blocks that were evicted at once: another object each time.
EvictionT = TypeVar("EvictionT")


class EvictedBlocks(Generic[EvictionT]):
    """At most about `capacity` blocks by their hash; the oldest evictions are forgotten first. O(1) a block."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._by_hash: dict[bytes, EvictionT] = {}
        self._batches: deque[tuple[EvictionT, list[bytes]]] = deque()
        self._noted = 0
        self.forgotten: EvictionT | None = None
        """The latest eviction that was forgotten."""

    @classmethod
    def of_cache(cls, num_blocks: int) -> EvictedBlocks[EvictionT]:
        """Remember several times as many as a cache of that size has."""
        return cls(min(_CACHES * num_blocks, _MAX_BLOCKS))

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._by_hash)

    def note(self, hashes: Iterable[bytes], eviction: EvictionT) -> None:
        """Note an eviction of blocks with these hashes, whatever follows the hash's first bytes."""
        keys = [each[:_HASH_BYTES] for each in hashes]
        if not keys:
            return
        self._by_hash.update(dict.fromkeys(keys, eviction))
        self._batches.append((eviction, keys))
        self._noted += len(keys)
        while self._noted > self._capacity:
            self._forget_oldest()

    def take(self, hashes: Sequence[bytes], indices: Iterable[int]) -> dict[int, EvictionT]:
        """Find those of a prompt's missed blocks that were evicted, by their index; they are computed again now."""
        if not self._by_hash:
            return {}
        pop = self._by_hash.pop
        found = ((index, pop(hashes[index][:_HASH_BYTES], None)) for index in indices)
        return {index: eviction for index, eviction in found if eviction is not None}

    def clear(self) -> None:
        """Forget all: the cache was emptied."""
        self._by_hash.clear()
        self._batches.clear()
        self._noted = 0

    def _forget_oldest(self) -> None:
        eviction, keys = self._batches.popleft()
        self._noted -= len(keys)
        self.forgotten = eviction
        for key in keys:
            # It may have been computed, and evicted again later.
            if self._by_hash.get(key) is eviction:
                del self._by_hash[key]
