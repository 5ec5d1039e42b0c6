"""Blocks that requests left or computed of late are copied while the CPU cache has room."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId, KVCacheBlock

from agentcache.engine.cpu_cache.store_choice import FreshBlocks
from agentcache.engine.segments.cached_blocks import WatchedBlockMap


def test_what_found_no_room_is_not_copied_later() -> None:
    """By then it is fresh no more: the GPU's next victims are chosen in another way."""
    host: Any = SimpleNamespace(room=2, map=SimpleNamespace(holds=lambda key: key == "stored"))
    cache = WatchedBlockMap()
    pool: Any = SimpleNamespace(cached_block_hash_to_block=cache)
    fresh = FreshBlocks(host, pool, computed=None)  # type: ignore[arg-type]
    names = ("stored", "first", "under way", "second", "third")
    fresh.note_left(SimpleNamespace(block_hash=name, block_id=number) for number, name in enumerate(names))  # type: ignore[misc]

    def choose() -> list[Any]:
        chosen: dict[Any, Any] = {}
        fresh.add_to(chosen, 9, ["under way"], lambda _: True)  # type: ignore[list-item]
        return list(chosen)

    assert choose() == ["first", "second"]
    host.room = 0
    assert choose() == []
    host.room = 2
    assert choose() == []


def test_a_block_that_is_taken_is_fresh_no_more() -> None:
    """Its next owner's hash stands before its KV: on a block left without a hash, too."""
    host: Any = SimpleNamespace(room=9, map=SimpleNamespace(holds=lambda _: False))
    cache = WatchedBlockMap()
    pool: Any = SimpleNamespace(cached_block_hash_to_block=cache)
    fresh = FreshBlocks(host, pool, computed=None)  # type: ignore[arg-type]
    left = [KVCacheBlock(block_id) for block_id in range(3)]
    for block in left[1:]:
        block.set_block_hash(BlockHashWithGroupId(b"first owner %d" % block.block_id), 16)
        cache.insert(block.block_hash, block)
    fresh.note_left(left)
    cache.pop(left[1].block_hash, 1)
    left[1].reset_hash()
    for block in left[:2]:
        block.set_block_hash(BlockHashWithGroupId(b"next owner %d" % block.block_id), 16)
        cache.insert(block.block_hash, block)
    chosen: dict[Any, Any] = {}
    fresh.add_to(chosen, 9, [], lambda _: True)
    assert list(chosen.values()) == [left[2]]
