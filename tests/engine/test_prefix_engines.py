"""Where gaps cannot be filled, what is left of a request is a prefix: its last block goes first."""

from __future__ import annotations

import pytest
from steered_scheduler import SEARCH, do_turn, make_lone
from vllm.v1.core.kv_cache_utils import KVCacheBlock

COST_AWARE = ("asymcache", "pensieve", "agentcache", "continuum+asymcache")


def left_positions(policy: str, model_path: str, *, fills_gaps: bool) -> list[int]:
    """Of one request's blocks, the next victim first."""
    lone = make_lone(
        model_path, policy, pins={"enabled": False}, segments={"enabled": fills_gaps}, gpu="h200", lifespan_s=30.0
    )
    do_turn(lone, "a", list(range(10, 300)), (SEARCH,), session_id="s")
    free: list[KVCacheBlock] = lone.pool.free_block_queue.get_all_free_blocks()
    return [block.block_hash_num_tokens for block in free if block.block_hash is not None]


@pytest.mark.parametrize("policy", COST_AWARE)
@pytest.mark.parametrize("fills_gaps", [True, False])
def test_which_end_of_a_request_goes_first(tiny_model_path: str, policy: str, fills_gaps: bool) -> None:
    positions = left_positions(policy, tiny_model_path, fills_gaps=fills_gaps)
    assert len(positions) == 19
    assert positions == sorted(positions, reverse=not fills_gaps)
