"""Which blocks of a waiting request are cached, kept up to date by every change of the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vllm.v1.core.block_pool import BlockHashToBlockMap, BlockPool
from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId, KVCacheBlock

from agentcache.engine.blocks.block_keys import Keys
from agentcache.engine.patches import replace

# The only group of models that the host's memory and measurements take.
KV_CACHE_GROUP = 0
# Called for every block that is computed or evicted: looked up once, as `super()` is not.
_insert, _pop = BlockHashToBlockMap.insert, BlockHashToBlockMap.pop


class CachedBlockMap:
    """`cached[g][i]` is 1 while the cache has the request's block i of group g of the layers, whose key `keys` has."""

    def __init__(self, keys: Sequence[Keys], cache: WatchedBlockMap) -> None:
        # Others grow as the request does.
        self.keys = [list(group) for group in keys]
        self.cached = [bytearray(map(cache.holds, group)) for group in self.keys]
        self._index: dict[BlockHashWithGroupId, tuple[bytearray, int]] = {}

    def note(self, key: BlockHashWithGroupId, cached: bool) -> None:
        """Note that the cache has got or lost its (last) block with this hash."""
        if not self._index:
            # Most requests are admitted before anything changes, and need no index.
            self._index = {
                key: (group, index)
                for keys, group in zip(self.keys, self.cached, strict=True)
                for index, key in enumerate(keys)
            }
        if (place := self._index.get(key)) is not None:
            group, index = place
            group[index] = cached


class WatchedBlockMap(BlockHashToBlockMap):
    """vLLM's map from hash to block, which tells the watching requests of every change: O(1) each."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watchers: dict[str, CachedBlockMap] = {}
        # By the block's id, the copy that reads it: taken out when the block loses its KV meanwhile.
        self.copying: dict[int, object] = {}

    @property
    def holds(self) -> Callable[[BlockHashWithGroupId], bool]:
        """Tell whether any block has this hash."""
        return self._cache.__contains__

    def insert(self, key: BlockHashWithGroupId, block: KVCacheBlock) -> None:
        """Insert a block, and tell those that watch."""
        _insert(self, key, block)
        if self.watchers:
            for watcher in self.watchers.values():
                watcher.note(key, True)

    def pop(self, key: BlockHashWithGroupId, block_id: int) -> KVCacheBlock | None:
        """Take out a block, and tell those that watch."""
        block = _pop(self, key, block_id)
        if self.copying:
            self.copying.pop(block_id, None)
        if self.watchers:
            for watcher in self.watchers.values():
                watcher.note(key, key in self._cache)
        return block

    def tell(self, keys: Sequence[BlockHashWithGroupId]) -> None:
        """Tell those that watch that blocks with these hashes came or went."""
        for watcher in self.watchers.values():
            for key in keys:
                watcher.note(key, key in self._cache)

    def find_blocks(self, keys: Sequence[BlockHashWithGroupId]) -> list[KVCacheBlock]:
        """Find one block for each hash, all of which must be held."""
        found = list(map(self._cache.__getitem__, keys))
        return [block if isinstance(block, KVCacheBlock) else next(iter(block.values())) for block in found]


def watch_cache(pool: BlockPool) -> WatchedBlockMap:
    """Put a map that tells of changes in place of the pool's own, which must be empty."""
    assert not len(pool.cached_block_hash_to_block)
    cache = WatchedBlockMap()
    replace(pool, "cached_block_hash_to_block", cache)
    return cache
