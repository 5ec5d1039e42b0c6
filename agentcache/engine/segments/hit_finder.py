"""Which blocks of a request can be reused, group by group of the model's layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from agentcache.engine.blocks.block_keys import BlockKeys, Keys
from agentcache.engine.segments.cached_blocks import CachedBlockMap, WatchedBlockMap, watch_cache
from agentcache.engine.segments.fill_request import Place, find_inputs
from agentcache.engine.segments.layer_rule import LayerRule
from agentcache.engine.segments.plan import Hits, Interval, begin_outside, find_hits
from agentcache.engine.vllm.types import BlockPool, KVCacheBlock, Request


class Prefix(NamedTuple):
    """The first `blocks` of a request, which it can reuse; `held` are those that are held for it."""

    block_map: CachedBlockMap
    blocks: int
    held: Mapping[Place, KVCacheBlock]


class PrefixHit(NamedTuple):
    """What vLLM's look-up gives: the blocks by group, their tokens, and a boundary for models with several groups.

    The boundary are the tokens of what full attention alone has cached, if those are more, else 0.
    """

    groups: tuple[list[KVCacheBlock], ...]
    tokens: int
    boundary: int


class HitFinder:
    """Looks into `pool`, whose map from hash to block it replaces."""

    def __init__(self, pool: BlockPool, rule: LayerRule, block_size: int) -> None:
        self.rule = rule
        self.block_size = block_size
        self._pool = pool
        self.keys = BlockKeys(rule.groups)
        self.cache: WatchedBlockMap = watch_cache(pool)

    def watch(self) -> None:
        """Watch the map that vLLM has made anew, which is empty."""
        self.cache = watch_cache(self._pool)

    def map(self, request: Request) -> CachedBlockMap:
        """Look up which of the request's blocks are cached."""
        return CachedBlockMap(self.keys.find(request), self.cache)

    def limit_of(self, request: Request) -> int:
        """Return how many of the request's blocks can be reused: its last token is computed in any case."""
        return (request.num_tokens - 1) // self.block_size

    def find_hits(self, request: Request, block_map: CachedBlockMap, limit: int) -> Hits:
        """Find the first blocks of those before `limit` that can be reused, and the segments behind gaps."""
        hits = find_hits(self.rule.find_usable(block_map.cached, limit), limit)
        return self.begin_outside_inputs(request, hits)

    def begin_outside_inputs(self, request: Request, hits: Hits) -> Hits:
        """Shorten the segments that begin in the middle of an encoder input of the request."""
        if not hits.islands or not request.mm_features:
            return hits
        return begin_outside(hits, find_inputs(request, self.block_size))

    def find_places(self, runs: Sequence[Interval]) -> Iterator[Place]:
        """Find the blocks of segments that are reused, and what the other groups need at the end of each."""
        for run in runs:
            yield from ((index, group) for group in self.rule.full for index in range(*run))
        yield from self.find_parts(runs)

    def find_parts(self, runs: Sequence[Interval]) -> Iterator[Place]:
        """Find what groups that keep a part need at the end of each of these segments."""
        for run in runs:
            yield from ((index, group) for group, needed in self.rule.needed_at(run.end) for index in needed)

    def find_reusable(self, request: Request) -> list[KVCacheBlock]:
        """Find the cached blocks that the request would reuse if all gaps before them were filled."""
        block_map = self.map(request)
        hits = self.find_hits(request, block_map, len(request.block_hashes))
        keys: Keys = []
        for run in (Interval(0, hits.prefix), *hits.islands):
            for group in self.rule.full:
                keys += block_map.keys[group][run.start : run.end]
            for group, needed in self.rule.needed_at(run.end):
                keys += block_map.keys[group][needed.start : needed.stop]
        return self.cache.find_blocks(keys)

    def find_prefix(self, prefix: Prefix, limit: int) -> PrefixHit:
        """Find the blocks of a prefix as vLLM's look-up does for a request with that limit."""
        needed = dict(self.rule.needed_at(prefix.blocks))
        groups = tuple(
            self._find_group(prefix, group, needed.get(group, range(prefix.blocks)))
            for group in range(self.rule.groups)
        )
        boundary = 0
        if self.rule.parts:
            cached = find_hits(self.rule.find_full(prefix.block_map.cached), limit).prefix
            boundary = cached if cached > prefix.blocks else 0
        return PrefixHit(groups, prefix.blocks * self.block_size, boundary * self.block_size)

    def _find_group(self, prefix: Prefix, group: int, indices: range) -> list[KVCacheBlock]:
        """Find a group's blocks; vLLM's null block stands for those that are not needed."""
        found = self.cache.find_blocks(prefix.block_map.keys[group][indices.start : indices.stop])
        if prefix.held:
            # What is held takes no more room; others may have the same content.
            found = [prefix.held.get((index, group), block) for index, block in zip(indices, found, strict=True)]
        return [self._pool.null_block] * indices.start + found
