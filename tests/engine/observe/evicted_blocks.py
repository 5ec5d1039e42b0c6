"""Blocks of the GPU that are about to lose their hashes."""

from __future__ import annotations

from tracked_requests import BLOCK
from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock, make_block_hash_with_group_id


def make_block(index: int, block_hash: bytes) -> KVCacheBlock:
    block = KVCacheBlock(index)
    block.set_block_hash(make_block_hash_with_group_id(BlockHash(block_hash), 0), (index + 1) * BLOCK)
    return block
