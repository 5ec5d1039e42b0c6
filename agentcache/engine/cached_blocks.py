"""Finds which blocks of a queued request can be reused, group by group of the model's layers.

A map of what is cached of it is kept up to date by every change of the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from itertools import chain, count
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from agentcache.engine.vllm.base import cdiv
from agentcache.engine.vllm.patches import replace
from agentcache.engine.vllm.types import (
    BlockHash,
    BlockHashToBlockMap,
    BlockHashWithGroupId,
    BlockPool,
    KVCacheBlock,
    Request,
    make_block_hash_with_group_id,
)
from agentcache.policy.reuse_plan import Hits, Interval, LayerRule, Place, begin_outside, find_hits

Keys = list[BlockHashWithGroupId]


class BlockKeys:
    """Keeps the keys of every request as long as that is there."""

    def __init__(self, groups: int = 1) -> None:
        # What vLLM puts behind a block's hash to tell groups of layers apart.
        self._suffixes = [make_block_hash_with_group_id(BlockHash(b""), group) for group in range(groups)]
        # The beginning of what stands for each request, group by group.
        self.known: WeakKeyDictionary[Request, list[Keys]] = WeakKeyDictionary()

    def find(self, request: Request) -> list[Keys]:
        """Return the keys of the request's full blocks, group by group. They are not to be changed."""
        hashes = request.block_hashes
        known = self.known.get(request)
        if known is None:
            known = self.known[request] = [[] for _ in self._suffixes]
        for keys, suffix in zip(known, self._suffixes, strict=True):
            # A streamed request may have lost its last blocks, and got others. Hashes stand for all before them.
            if len(keys) > len(hashes) or (keys and keys[-1] != hashes[len(keys) - 1] + suffix):
                keys.clear()
            if len(keys) < len(hashes):
                keys += [BlockHashWithGroupId(each + suffix) for each in hashes[len(keys) :]]
        return known


# The only group of models that the CPU cache and measurements take.
KV_CACHE_GROUP = 0
# Called for every block that is computed or evicted: looked up once, as `super()` is not.
_insert, _pop = BlockHashToBlockMap.insert, BlockHashToBlockMap.pop


class CachedBlockMap:
    """`cached[g][i]` is 1 while the cache has the request's block i of group g of the layers, whose key `keys` has."""

    def __init__(self, keys: Sequence[Keys], cache: WatchedBlockMap) -> None:
        # Others grow as the request does.
        self.keys = [list(group) for group in keys]
        self.cached = [bytearray(map(cache.holds, group)) for group in self.keys]
        # Where keys stand, those of a group behind those of the one before.
        self._places: dict[BlockHashWithGroupId, int] = {}

    def note(self, key: BlockHashWithGroupId, held: bool) -> None:
        """Note that the cache has got or lost its (last) block with this hash."""
        if (place := (self._places or self._find_places()).get(key)) is not None:
            self._set(place, held)

    def note_all(self, changed: Set[BlockHashWithGroupId], holds: Callable[[BlockHashWithGroupId], bool]) -> None:
        """Note of these hashes, of which the cache got or lost blocks, whether it `holds` any now: quick for many."""
        places = self._places or self._find_places()
        for key in places.keys() & changed:
            self._set(places[key], holds(key))

    def _find_places(self) -> dict[BlockHashWithGroupId, int]:
        # Most requests are admitted before anything changes, and need none.
        self._places = dict(zip(chain.from_iterable(self.keys), count(), strict=False))
        return self._places

    def _set(self, place: int, held: bool) -> None:
        for group in self.cached:
            if place < len(group):
                group[place] = held
                return
            place -= len(group)


class WatchedBlockMap(BlockHashToBlockMap):
    """vLLM's map from hash to block, which tells the watching requests of every change: O(1) each.

    `changes` grows with every change, so that what was found in the map need not be looked for again.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watchers: dict[str, CachedBlockMap] = {}
        # By the block's id, the copy that reads it: taken out when the block loses its KV meanwhile.
        self.copying: dict[int, object] = {}
        self.changes = 0
        # Changes that watchers hear of together; None where they hear of each at once.
        self._to_tell: list[BlockHashWithGroupId] | None = None

    @property
    def holds(self) -> Callable[[BlockHashWithGroupId], bool]:
        """Tell whether any block has this hash."""
        return self._cache.__contains__

    def insert(self, key: BlockHashWithGroupId, block: KVCacheBlock) -> None:
        """Insert a block, and tell those that watch."""
        _insert(self, key, block)
        self._note_change(key)

    def pop(self, key: BlockHashWithGroupId, block_id: int) -> KVCacheBlock | None:
        """Take out a block, and tell those that watch."""
        block = _pop(self, key, block_id)
        if self.copying:
            self.copying.pop(block_id, None)
        self._note_change(key)
        return block

    def tell(self, keys: Sequence[BlockHashWithGroupId]) -> None:
        """Tell those that watch that blocks with these hashes came or went."""
        self.changes += 1
        if self.watchers and keys:
            changed = set(keys)
            for watcher in self.watchers.values():
                watcher.note_all(changed, self.holds)

    @contextmanager
    def telling_once(self) -> Iterator[None]:
        """Tell watchers of the changes inside when all are done: of many blocks at once, which is quicker."""
        self._to_tell = []
        try:
            yield
        finally:
            changed, self._to_tell = self._to_tell, None
            self.tell(changed)

    def _note_change(self, key: BlockHashWithGroupId) -> None:
        self.changes += 1
        if self._to_tell is not None:
            self._to_tell.append(key)
        elif self.watchers:
            held = key in self._cache
            for watcher in self.watchers.values():
                watcher.note(key, held)

    def find_blocks(self, keys: Sequence[BlockHashWithGroupId]) -> list[KVCacheBlock]:
        """Find one block for each hash, all of which must be held."""
        return take_blocks(self, keys)


def take_blocks(cache: BlockHashToBlockMap, keys: Sequence[BlockHashWithGroupId]) -> list[KVCacheBlock]:
    """Find one block for each hash in a map of vLLM's, which must hold all of them."""
    found: list[Any] = list(map(cache._cache.__getitem__, keys))
    if dict not in map(type, found):
        return found
    return [block if isinstance(block, KVCacheBlock) else next(iter(block.values())) for block in found]


def make_keys(hashes: Sequence[bytes], groups: int) -> Keys:
    """Make the keys of blocks with these hashes in all groups of layers."""
    return [make_block_hash_with_group_id(BlockHash(each), group) for each in hashes for group in range(groups)]


def find_held(cache: BlockHashToBlockMap, keys: Sequence[BlockHashWithGroupId]) -> list[KVCacheBlock]:
    """Find all blocks with these hashes: requests that compute the same side by side have one each."""
    found = [held for key in keys if (held := cache._cache.get(key)) is not None]
    return [*chain.from_iterable([each] if isinstance(each, KVCacheBlock) else each.values() for each in found)]


def watch_cache(pool: BlockPool) -> WatchedBlockMap:
    """Put a map that tells of changes in place of the pool's own, which must be empty."""
    assert not len(pool.cached_block_hash_to_block)
    cache = WatchedBlockMap()
    replace(pool, "cached_block_hash_to_block", cache)
    return cache


class Prefix(NamedTuple):
    """The first `blocks` of a request, which it can reuse; `held` are those that are held for it."""

    block_map: CachedBlockMap
    blocks: int
    held: Mapping[Place, KVCacheBlock]


# What vLLM's look-up gives: the blocks by group, their tokens, and a boundary for models with several groups: as many
# tokens as full attention alone has cached, if those are more, else 0.
PrefixHit = tuple[tuple[list[KVCacheBlock], ...], int, int]


def find_inputs(request: Request, block_size: int) -> list[Interval]:
    """Find the blocks of encoder inputs, an image's for instance, before which no gap can end: all but the first."""
    places = [feature.mm_position for feature in request.mm_features]
    return [Interval(place.offset // block_size + 1, cdiv(place.offset + place.length, block_size)) for place in places]


class HitFinder:
    """Looks into `pool`, whose map from hash to block it replaces."""

    def __init__(self, pool: BlockPool, rule: LayerRule, block_size: int) -> None:
        self.rule = rule
        self.block_size = block_size
        self._pool = pool
        self.keys = BlockKeys(rule.groups)
        self.cache: WatchedBlockMap = watch_cache(pool)
        """The pool's map. A reset makes a new one: ask anew, do not keep it."""

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
        return groups, prefix.blocks * self.block_size, boundary * self.block_size

    def _find_group(self, prefix: Prefix, group: int, indices: range) -> list[KVCacheBlock]:
        """Find a group's blocks; vLLM's null block stands for those that are not needed."""
        found = self.cache.find_blocks(prefix.block_map.keys[group][indices.start : indices.stop])
        if prefix.held:
            # What is held takes no more room; others may have the same content.
            found = [prefix.held.get((index, group), block) for index, block in zip(indices, found, strict=True)]
        return [self._pool.null_block] * indices.start + found
