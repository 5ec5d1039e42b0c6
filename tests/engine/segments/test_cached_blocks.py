from __future__ import annotations

from contextlib import nullcontext

from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock, make_block_hash_with_group_id

from agentcache.engine.cached_blocks import CachedBlockMap, WatchedBlockMap

HASHES = [BlockHash(bytes([number]) * 32) for number in range(8)]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 19), st.integers(0, 3))))
def test_hit_map_follows_every_change_of_the_cache(changes: list[tuple[bool, int, int]]) -> None:
    cache = WatchedBlockMap()
    blocks = [KVCacheBlock(number) for number in range(4)]
    keys = [
        make_block_hash_with_group_id(block_hash, group)
        for group in range(2)
        for block_hash in [*HASHES, BlockHash(b"a" * 32), BlockHash(b"b" * 32)]
    ]
    wanted = [[make_block_hash_with_group_id(each, group) for each in HASHES] for group in range(2)]
    watched = cache.watchers["early"] = CachedBlockMap(wanted, cache)
    for inserted, key, block in changes:
        if inserted:
            cache.insert(keys[key], blocks[block])
        else:
            cache.pop(keys[key], block)
        assert watched.cached == CachedBlockMap(wanted, cache).cached
        present = [
            key
            for keys, group in zip(watched.keys, watched.cached, strict=True)
            for key, held in zip(keys, group, strict=True)
            if held
        ]
        found = cache.find_blocks(present)
        assert all(cache.contain(key, block.block_id) for key, block in zip(present, found, strict=True))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 7), st.integers(0, 3))), st.booleans())
def test_those_that_watch_learn_at_once_what_changed(changes: list[tuple[bool, int, int]], slowly: bool) -> None:
    cache = WatchedBlockMap()
    keys = [make_block_hash_with_group_id(block_hash, 0) for block_hash in HASHES]
    watched = cache.watchers["early"] = CachedBlockMap([keys], cache)
    before = cache.changes
    with nullcontext() if slowly else cache.telling_once():
        for inserted, key, block in changes:
            if inserted:
                cache.insert(keys[key], KVCacheBlock(block))
            else:
                cache.pop(keys[key], block)
    assert watched.cached == CachedBlockMap([keys], cache).cached
    assert cache.changes > before or not changes
