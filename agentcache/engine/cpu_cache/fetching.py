"""Copies back to the GPU the blocks that a queued request lacks there and has in the CPU cache.

A fetched block becomes a block of the GPU's prefix cache like any other, so the request is admitted as if it had never
been away: it hits it as a prefix or behind a gap. Until then it waits, and lets others pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from agentcache.engine.blocks.block_queue import BlockQueue
from agentcache.engine.cached_blocks import KV_CACHE_GROUP, CachedBlockMap, find_inputs
from agentcache.engine.cpu_cache.storing import Storing
from agentcache.engine.segments.gap_filler import GapFiller
from agentcache.engine.vllm.types import BlockHashWithGroupId, KVCacheBlock, Request, Scheduler
from agentcache.policy.link_profile import Link
from agentcache.policy.reuse_plan import FetchCosts, plan_fetch

# A fetch waits no longer for others' blocks to be stored.
_MOST_STEPS = 4


@dataclass(frozen=True, slots=True)
class Fetch:
    """Copies for requests, from the host's `sources` to the GPU's `blocks`. `keys` are those of both."""

    request_ids: frozenset[str]
    sources: Sequence[KVCacheBlock]
    blocks: Sequence[KVCacheBlock]
    keys: Sequence[BlockHashWithGroupId]

    @classmethod
    def join(cls, fetches: Sequence[Fetch]) -> Fetch:
        """Make one of several, which then end together."""
        return cls(
            frozenset().union(*(fetch.request_ids for fetch in fetches)),
            [block for fetch in fetches for block in fetch.sources],
            [block for fetch in fetches for block in fetch.blocks],
            [key for fetch in fetches for key in fetch.keys],
        )


class _Found(NamedTuple):
    """What of a request is worth fetching, and all that this follows from, but for how many requests ran then."""

    causes: tuple[object, ...]
    wanted: list[int]


class Fetching:
    """Plans one fetch a request at a time, or the next part of one."""

    def __init__(
        self, scheduler: Scheduler, queue: BlockQueue, *, filler: GapFiller, storing: Storing, link: Link
    ) -> None:
        """`queue` is that of the GPU's cache. What `filler` would compute in gaps is fetched where that costs less."""
        self._scheduler = scheduler
        self._storing = storing
        # How many steps each request has waited for blocks that may be lost.
        self._postponed: WeakKeyDictionary[Request, int] = WeakKeyDictionary()
        self._pool = scheduler.kv_cache_manager.block_pool
        self._queue = queue
        self._host = storing.host
        self._filler = filler
        self.link = link
        # Requests for which a fetch failed: they compute what they lack.
        self._failed: WeakSet[Request] = WeakSet()
        # Blocks under way to the GPU.
        self._coming: set[BlockHashWithGroupId] = set()
        # A waiting request is looked at in every step, and more than once.
        self._found: WeakKeyDictionary[Request, _Found] = WeakKeyDictionary()

    def begin(self, request: Request, on_gpu: CachedBlockMap, wanted: Sequence[int], most: int) -> Fetch | None:
        """Hold what the request hits on the GPU, and take blocks there for the first `most` that `find_wanted` gave.

        What comes leaves the room of its copies in the CPU cache to what gives way to the next part. Fetched at
        once, all would need room there that only others' KV could make.

        Returns:
            None while all of it is under way already.
        """
        on_gpu_keys = on_gpu.keys[KV_CACHE_GROUP]
        new = [index for index in wanted if on_gpu_keys[index] not in self._coming]
        hits = [(index, KV_CACHE_GROUP) for index, cached in enumerate(on_gpu.cached[KV_CACHE_GROUP]) if cached]
        self._filler.holds.hold_cached(request, on_gpu, hits)
        part = new[:most]
        if not part or self._postpones(request, len(part)):
            return None
        keys = [on_gpu_keys[index] for index in part]
        sources = self._host.begin_reading(keys)
        blocks = self._pool.get_new_blocks(len(keys))
        self._coming.update(keys)
        places = [(index, KV_CACHE_GROUP) for index in part]
        self._filler.holds.hold(request, dict(zip(places, blocks, strict=True)), fetched=True)
        return Fetch(frozenset([request.request_id]), sources, blocks, keys)

    def end(self, fetch: Fetch) -> None:
        """Make what has come part of the GPU's prefix cache, to be evicted like what the same turn has left there."""
        self._coming.difference_update(fetch.keys)
        with self._filler.finder.cache.telling_once():
            for block, key, source in zip(fetch.blocks, fetch.keys, fetch.sources, strict=True):
                self._pool._insert_block_hash(key, block, num_tokens=source.block_hash_num_tokens)
        uses = list(map(self._host.last_use_of, fetch.sources))
        self._storing.inherit(fetch.blocks, uses)
        for use, group in groupby(zip(reversed(uses), reversed(fetch.blocks), strict=True), key=itemgetter(0)):
            with self._queue.free_with(use.context, use.freed_s):
                self._pool.free_blocks([block for _, block in group])
        self._storing.usefulness.note_fetched(use.context.finish_class for use in uses)
        self._host.end_reading(fetch.sources)

    def fail(self, fetch: Fetch) -> None:
        """Give back what was taken for a fetch whose copies failed. Its requests fetch no more, others may."""
        self._coming.difference_update(fetch.keys)
        self._failed.update(self._filler.holds.release_blocks(fetch.request_ids, fetch.blocks))
        self._pool.free_blocks(fetch.blocks)
        self._host.end_reading_in_vain(fetch.sources)

    def _postpones(self, request: Request, blocks: int) -> bool:
        """Tell whether to wait until what would be lost for this fetch is stored."""
        steps = self._postponed.get(request, 0)
        if steps < _MOST_STEPS and not self._storing.can_lose(blocks):
            self._postponed[request] = steps + 1
            return True
        self._postponed.pop(request, None)
        return False

    def count_here(self, request: Request) -> int:
        """Count the request's blocks that are in the CPU cache alone."""
        return self._find_here(self._filler.finder.map(request)).count(1)

    def find_wanted(self, request: Request, on_gpu: CachedBlockMap) -> list[int]:
        """Find the blocks that are in the CPU cache alone and worth fetching, by their index."""
        if request in self._failed:
            return []
        limit = self._filler.finder.limit_of(request)
        cached = bytes(on_gpu.cached[KV_CACHE_GROUP])
        # A hash stands for all tokens before it.
        last = on_gpu.keys[KV_CACHE_GROUP][-1:]
        causes = (self._host.map, self._host.map.changes, cached, last, limit, self._filler.gaps_left(request))
        found = self._found.get(request)
        if found is None or found.causes != causes:
            found = self._found[request] = _Found(causes, self._find_wanted(request, on_gpu, limit))
        return found.wanted

    def _find_wanted(self, request: Request, on_gpu: CachedBlockMap, limit: int) -> list[int]:
        on_host = self._find_here(on_gpu)[:limit]
        if 1 not in on_host:
            return []
        # Both keep the request waiting; those that run stand still while it is computed.
        costs = FetchCosts(self._filler.costs, self.link, compute_price=1 + len(self._scheduler.running))
        inputs = find_inputs(request, self._filler.finder.block_size)
        cached = bytes(on_gpu.cached[KV_CACHE_GROUP][:limit])
        plan = plan_fetch(cached, on_host, costs, self._filler.gaps_left(request), inputs)
        return [index for run in plan for index in range(*run)]

    def _find_here(self, on_gpu: CachedBlockMap) -> bytes:
        """Find which blocks of the request are in the CPU cache alone, 1 where one is: all at once for speed."""
        keys = on_gpu.keys[KV_CACHE_GROUP]
        on_host = int.from_bytes(bytes(map(self._host.map.holds, keys)))
        return (on_host & ~int.from_bytes(on_gpu.cached[KV_CACHE_GROUP])).to_bytes(len(keys))
