"""vLLM's block pool with its loops over blocks in fewer steps: what it does is the same, block by block.

A prompt of an agent has thousands of blocks, and vLLM calls several functions for each of them. That is little beside
what a GPU takes for them, and most of a simulation. Here stand the same loops without these calls, for models whose
layers all keep all tokens: there each block has one hash, and none is hit in part. Whatever is out of the ordinary is
left to vLLM's own methods.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from agentcache.engine.cached_blocks import BlockKeys, WatchedBlockMap, take_blocks
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.segments.obstacles import has_full_attention_alone
from agentcache.engine.segments.scheduler import SteeredCacheManager, steer
from agentcache.engine.vllm.patches import replace
from agentcache.engine.vllm.types import (
    BlockHashWithGroupId,
    BlockPool,
    KVCacheBlock,
    KVCacheBlocks,
    Request,
    RequestStatus,
)

_GROUP = 0


class QuickPool(BlockPool):
    """Has the state of vLLM's own pool, whose class it takes, and the keys of requests' blocks."""

    keys: BlockKeys

    def find_hits(self, request: Request, limit: int) -> list[KVCacheBlock]:
        """Find the cached blocks that the request begins with, at most `limit`."""
        cache = self.cached_block_hash_to_block
        keys = self.keys.find(request)[_GROUP][:limit]
        missing = bytes(map(cache._cache.__contains__, keys)).find(0)
        return take_blocks(cache, keys if missing < 0 else keys[:missing])

    def cache_full_blocks(  # noqa: PLR0917 (as vLLM's own)
        self,
        request: Request,
        blocks: list[KVCacheBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
        block_mask: list[bool] | None = None,
    ) -> None:
        """Register full blocks of a request."""
        if block_mask is not None or self.enable_kv_cache_events:
            super().cache_full_blocks(
                request, blocks, num_cached_blocks, num_full_blocks, block_size, kv_cache_group_id, block_mask
            )
            return
        cache = self.cached_block_hash_to_block
        held = cache._cache
        keys = self.keys.find(request)[_GROUP]
        new = []
        for index in range(num_cached_blocks, num_full_blocks):
            block, key = blocks[index], keys[index]
            if key in held or block._block_hash is not None or block.is_null:
                super().cache_full_blocks(request, blocks, index, index + 1, block_size, kv_cache_group_id)
                continue
            block._block_hash = key
            block._block_hash_num_tokens = (index + 1) * block_size
            held[key] = block
            new.append(key)
        if isinstance(cache, WatchedBlockMap):
            cache.tell(new)

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take blocks from the free ones; what was in them is lost."""
        cache = self.cached_block_hash_to_block
        watched = cache if isinstance(cache, WatchedBlockMap) else None
        if num_blocks > self.get_num_free_blocks():
            return super().get_new_blocks(num_blocks)
        held = cache._cache
        copying = watched.copying if watched else {}
        taken: list[KVCacheBlock] = self.free_block_queue.popleft_n(num_blocks)
        lost: list[BlockHashWithGroupId] = []
        for block in taken:
            assert block.ref_cnt == 0
            block.ref_cnt = 1
            key = block._block_hash
            if key is not None and held.get(key) is block and not self.enable_kv_cache_events:
                del held[key]
                block._block_hash = block._block_hash_num_tokens = None
                lost.append(key)
                copying.pop(block.block_id, None)
            elif key is not None:
                self.evict_blocks({block.block_id})
        if watched:
            watched.tell(lost)
        return taken


class QuickCacheManager(SteeredCacheManager):
    """Looks up and allocates with fewer calls, in a pool that is a `QuickPool`, where all layers keep all tokens."""

    def get_computed_blocks(self, request: Request, *limit: int | None) -> tuple[KVCacheBlocks, int, int]:
        """Find the cached blocks that a request begins with."""
        if self.scheduler.gap_filler is not None or not self.prefix_cache_lookup_enabled(request):
            return super().get_computed_blocks(request, *limit)
        assert isinstance(self.block_pool, QuickPool)
        (group,) = self.coordinator.single_type_managers
        most = next((tokens for tokens in limit if tokens is not None), request.num_tokens - 1)
        found = self.block_pool.find_hits(request, most // group.block_size)
        return self.create_kv_cache_blocks((found,)), len(found) * group.block_size, 0

    def allocate_slots(self, request: Request, num_new_tokens: int, *args: Any, **kwargs: Any) -> KVCacheBlocks | None:
        """Leave out what is only looked for: most tokens of replies begin no block, and fill none."""
        (group,) = self.coordinator.single_type_managers
        name = request.request_id
        cached = group.num_cached_block.get(name)
        if (
            cached is None
            or args
            or request.status != RequestStatus.RUNNING
            or not num_new_tokens
            or any(kwargs.values())
        ):
            return super().allocate_slots(request, num_new_tokens, *args, **kwargs)
        tokens = request.num_computed_tokens + num_new_tokens
        full_blocks = min(tokens, request.num_tokens) // group.block_size
        if tokens > len(group.req_to_blocks[name]) * group.block_size or full_blocks > cached:
            return super().allocate_slots(request, num_new_tokens, *args, **kwargs)
        return self.empty_kv_cache_blocks


def follow(keys: BlockKeys, request: Request, earlier: Request) -> None:
    """Take over the keys of an earlier request for the blocks that both begin with, if that still has any."""
    known = keys.known.get(earlier)
    if known is None:
        return
    most = min(len(request.block_hashes), len(earlier.block_hashes), *map(len, known))
    # Hashes are chained: after the first difference all differ.
    shared = bisect_left(range(most), True, key=lambda i: request.block_hashes[i] != earlier.block_hashes[i])
    keys.known[request] = [group[:shared] for group in known]


def quicken(scheduler: AgentScheduler) -> BlockKeys | None:
    """Put quick methods in the place of vLLM's, on a scheduler that has seen no request, unless they do not suit it.

    Returns what they and the scheduler call blocks by, for `follow`.
    """
    manager = scheduler.kv_cache_manager
    pool = manager.block_pool
    if (
        not manager.enable_caching
        or pool.enable_kv_cache_events
        or scheduler.hash_block_size != scheduler.block_size
        or not has_full_attention_alone(scheduler.kv_cache_config)
    ):
        return None
    keys = BlockKeys() if scheduler.gap_filler is None else scheduler.gap_filler.finder.keys
    replace(pool, "__class__", QuickPool)
    assert isinstance(pool, QuickPool)
    pool.keys = keys
    steer(scheduler, QuickCacheManager)
    return keys
