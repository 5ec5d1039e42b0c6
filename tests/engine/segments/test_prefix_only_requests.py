"""Requests whose gaps cannot be filled, on an engine that fills those of others: an image comes in shared memory."""

from __future__ import annotations

from typing import Any

import pytest
from lone_scheduler import BLOCK_SIZE, LoneScheduler
from steered_scheduler import SEARCH, do_turn_in_no_time, make_lone, tokens_of
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.kv_cache_utils import KVCacheBlock

COST_AWARE = ("asymcache", "pensieve", "agentcache", "continuum+asymcache")
SHARED: Any = {"address": 1}
IMAGE = MultiModalFeatureSpec(SHARED, "image", "picture", PlaceholderRange(offset=2, length=8))


def make(model_path: str, policy: str, **knobs: Any) -> LoneScheduler:
    """An engine that takes images, though its model does not look at them."""
    lone = make_lone(model_path, policy, gpu="h200", lifespan_s=30.0, **knobs)
    lone.scheduler.max_num_encoder_input_tokens = 100
    lone.scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=100)
    return lone


def cached_positions(lone: LoneScheduler, blocks: set[int]) -> list[int]:
    """Of these blocks, the next victim first."""
    free: list[KVCacheBlock] = lone.pool.free_block_queue.get_all_free_blocks()
    return [block.block_hash_num_tokens for block in free if block.block_id in blocks]


def run(lone: LoneScheduler, name: str, number: int, **options: Any) -> set[int]:
    """A turn that calls a tool. The ids of the blocks that it leaves."""
    before = {block.block_id for block in lone.pool.blocks if block.block_hash}
    do_turn_in_no_time(lone, name, tokens_of(number, 300), calls=(SEARCH,), session_id=name, **options)
    return {block.block_id for block in lone.pool.blocks if block.block_hash} - before


@pytest.mark.parametrize("policy", COST_AWARE)
@pytest.mark.parametrize("pins", [False, True])
def test_an_image_request_loses_its_end_first(tiny_model_path: str, policy: str, pins: bool) -> None:
    lone = make(tiny_model_path, policy, pins={"enabled": pins})
    text, image = run(lone, "text", 1), run(lone, "image", 2, mm_features=[IMAGE])
    assert len(text) == len(image) == 18
    positions = cached_positions(lone, text)
    assert positions == sorted(positions), "gaps in text are filled: the cheapest block goes first"
    positions = cached_positions(lone, image)
    assert positions == sorted(positions, reverse=True)


def test_each_block_of_an_image_request_is_as_dear_as_their_mean(tiny_model_path: str) -> None:
    """Half of the text's blocks are cheaper to compute again, half are dearer."""
    lone = make(tiny_model_path, "pensieve")
    text, image = run(lone, "text", 1), run(lone, "image", 2, mm_features=[IMAGE])
    free: list[KVCacheBlock] = lone.pool.free_block_queue.get_all_free_blocks()
    order = ["text" if block.block_id in text else "image" for block in free if block.block_id in text | image]
    assert order.index("image") in (8, 9)
    assert order[order.index("image") :][:18] == ["image"] * 18


def test_what_an_image_request_will_hit_is_a_prefix(tiny_model_path: str) -> None:
    lone = make(tiny_model_path, "agentcache")
    prompt = tokens_of(2, 10 * BLOCK_SIZE + 1)
    do_turn_in_no_time(lone, "image", prompt, calls=(), mm_features=[IMAGE])
    third = lone.scheduler.requests  # Nothing runs.
    assert not third
    lone.add("again", prompt, output_tokens=1, mm_features=[IMAGE])
    again = lone.scheduler.requests["again"]
    hits = lone.scheduler.find_hits(again)
    assert len(hits) == 10
    lone.pool.evict_blocks({hits[3].block_id})
    assert lone.scheduler.find_hits(again) == hits[:3]
