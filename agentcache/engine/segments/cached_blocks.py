"""Which blocks of a waiting request are cached, kept up to date by every change of the cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from itertools import chain, count
from typing import Any

from agentcache.engine.blocks.block_keys import Keys
from agentcache.engine.vllm.patches import replace
from agentcache.engine.vllm.types import BlockHashToBlockMap, BlockHashWithGroupId, BlockPool, KVCacheBlock

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
        # The same of blocks that may be copied, first come first.
        self.fresh: OrderedDict[int, KVCacheBlock] = OrderedDict()
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
        if self.fresh:
            self.fresh.pop(block_id, None)
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


def watched_map_of(pool: BlockPool) -> WatchedBlockMap:
    """Return the map of a pool that is watched. A reset makes a new one: ask anew, do not keep it."""
    cache = pool.cached_block_hash_to_block
    assert isinstance(cache, WatchedBlockMap)
    return cache


def watch_cache(pool: BlockPool) -> WatchedBlockMap:
    """Put a map that tells of changes in place of the pool's own, which must be empty."""
    assert not len(pool.cached_block_hash_to_block)
    cache = WatchedBlockMap()
    replace(pool, "cached_block_hash_to_block", cache)
    return cache
