"""From where a request can go on, against the definition block by block and against vLLM's own look-up."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from gapped_families import FAMILIES
from grouped_scheduler import make_lone
from hypothesis import given, settings
from hypothesis import strategies as st
from lone_scheduler import BLOCK_SIZE, LoneScheduler
from sizes import pick_size
from vllm import SamplingParams
from vllm.v1.core.kv_cache_utils import BlockHash, make_block_hash_with_group_id
from vllm.v1.request import Request

from agentcache.engine.cached_blocks import CachedBlockMap
from agentcache.policy.reuse_plan import Chunk, LayerRule, Window

BLOCKS = 30
HASHES = [BlockHash(bytes([number]) * 32) for number in range(BLOCKS)]
PARTS = st.one_of(
    st.builds(Window, st.integers(1, 6)), st.builds(Chunk, st.integers(1, 9).map(lambda size: 4 * size), st.just(4))
)


def make_caches(groups: int) -> st.SearchStrategy[list[bytearray]]:
    """Of each group what is cached, in runs."""
    runs = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 9)), min_size=BLOCKS)
    flags = runs.map(lambda found: bytearray(value for value, length in found for _ in range(length))[:BLOCKS])
    return st.lists(flags, min_size=groups, max_size=groups)


def is_place(rule: LayerRule, cached: list[bytearray], end: int) -> bool:
    """Whether every group that keeps a part has what the token behind the first `end` blocks sees."""
    for group, part in rule.parts:
        for block in range(end):
            if isinstance(part, Window):
                seen = end - block <= part.blocks
            else:
                last_token = (block + 1) * part.block_size - 1
                seen = last_token // part.tokens >= end * part.block_size // part.tokens
            if seen and not cached[group][block]:
                return False
    return True


@given(st.data())
def test_usable_blocks_are_those_of_the_definition(data: st.DataObject) -> None:
    """Block i counts if full attention has all from it to some place behind it."""
    full = data.draw(st.integers(1, 2))
    parts = data.draw(st.lists(PARTS, max_size=3))
    rule = LayerRule(tuple(range(full)), tuple(enumerate(parts, start=full)))
    cached = data.draw(make_caches(rule.groups))
    limit = data.draw(st.integers(0, BLOCKS))
    usable = rule.find_usable(cached, limit)
    for block in range(limit):
        run = 0
        while block + run < limit and all(cached[group][block + run] for group in rule.full):
            run += 1
        expected = any(is_place(rule, cached, end) for end in range(block + 1, block + run + 1))
        assert usable[block] == expected, block
    for end in range(1, BLOCKS + 1):
        has_needed = all(all(cached[group][block] for block in needed) for group, needed in rule.needed_at(end))
        assert has_needed == is_place(rule, cached, end)


@cache
def make_family(model_path: str, family: str) -> LoneScheduler:
    return make_lone(model_path, FAMILIES[family], 200, policy="asymcache")


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=pick_size(10, 300))
@given(data=st.data())
def test_prefix_is_the_one_that_vllm_finds(tiny_model_path: str, family: str, data: st.DataObject) -> None:
    scheduler: Any = make_family(tiny_model_path, family).scheduler
    finder = scheduler.gap_filler.finder
    caches = data.draw(make_caches(finder.rule.groups))
    limit = data.draw(st.integers(0, BLOCKS))
    keys = [[make_block_hash_with_group_id(each, group) for each in HASHES] for group in range(finder.rule.groups)]
    blocks = iter(scheduler.kv_cache_manager.block_pool.blocks[1:])
    held = {
        key: next(blocks)
        for group, cached in zip(keys, caches, strict=True)
        for key, there in zip(group, cached, strict=True)
        if there
    }
    for key, block in held.items():
        finder.cache.insert(key, block)
    block_map = CachedBlockMap(keys, finder.cache)
    _, found, _ = scheduler.kv_cache_manager.coordinator.find_longest_cache_hit(HASHES, limit * BLOCK_SIZE)
    for key, block in held.items():
        finder.cache.pop(key, block.block_id)
    request = Request("text", [1], SamplingParams(), None)
    assert finder.find_hits(request, block_map, limit).prefix * BLOCK_SIZE == found
