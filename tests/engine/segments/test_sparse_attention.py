"""Latent attention that reads the keys which an indexer chooses: what its caches mean for gaps.

An indexer writes one vector a token into a cache of its own, as the attention does, and both find it by the same block
table. So a block with the wanted hash has both, whichever request computed it, and a choice is made anew of all of it.
Where several tokens share a state, the open state of the last few lies in a ring or a window that no block has.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from gapped_scheduler import PROMPT, cache_prompt, rows_of, run_until_idle
from lone_scheduler import BLOCK_SIZE, LoneScheduler, make_config
from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config
from vllm.v1.kv_cache_interface import (
    CircularBufferSpec,
    HiSparseHotSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SparseCacheRole,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.structured_output import StructuredOutputManager

from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.segments.obstacles import Obstacle, find_rule_obstacle
from agentcache.engine.vllm.compat import find_moved

BLOCKS = 64
# Those of DeepSeek-V3.2 with `--kv-cache-dtype fp8_ds_mla`, as its layers give them.
LATENT = MLAAttentionSpec(
    block_size=BLOCK_SIZE,
    num_kv_heads=1,
    max_tp_shards=1,
    head_size=576,
    dtype=torch.uint8,
    cache_dtype_str="fp8_ds_mla",
    state_content_bytes=656,
    is_index_group_leader=True,
)
INDEXER = MLAAttentionSpec(
    block_size=BLOCK_SIZE,
    num_kv_heads=1,
    max_tp_shards=1,
    head_size=132,
    dtype=torch.uint8,
    cache_role=SparseCacheRole.INDEXER,
)
# Those of DeepSeek-V4 and its successors.
COMPRESSED = replace(LATENT, tokens_per_state=4, model_version="deepseek_v4")
WINDOW = SlidingWindowMLASpec(
    block_size=BLOCK_SIZE, num_kv_heads=1, head_size=576, dtype=torch.uint8, sliding_window=2 * BLOCK_SIZE
)
RING = CircularBufferSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=576, dtype=torch.uint8)
HOT = HiSparseHotSpec(block_size=BLOCK_SIZE, page_size=4096, blocks_per_request=2)


def make_sparse(model_path: str) -> LoneScheduler:
    """Its layers are grouped by vLLM."""
    config = make_config(model_path, SCHEDULER_CLASS, policy="asymcache", lifespan_s=200, tuning={"row_s": 0.0})
    config.cache_config.num_gpu_blocks = BLOCKS
    layers: dict[str, KVCacheSpec] = {}
    for number in range(3):
        layers[f"layers.{number}.attn"] = LATENT
        layers[f"layers.{number}.indexer.k_cache"] = INDEXER
    groups = find_moved("get_kv_cache_groups")(config, layers)
    assert [type(group.kv_cache_spec) for group in groups] == [UniformTypeKVCacheSpecs]
    scheduler = config.scheduler_config.get_scheduler_cls()(
        vllm_config=config,
        kv_cache_config=generate_scheduler_kv_cache_config([KVCacheConfig(BLOCKS, [], groups)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
    )
    assert isinstance(scheduler, AgentScheduler)
    scheduler.clock = itertools.count(1.0).__next__
    return LoneScheduler(scheduler, shadow=True)


def test_gaps_are_filled_where_an_indexer_has_its_own_cache(tiny_model_path: str) -> None:
    lone = make_sparse(tiny_model_path)
    cache_prompt(lone, 2, 3, 9)
    lone.add("job", PROMPT, output_tokens=3)
    assert rows_of(lone.step()) == {"job fill 0": (32, 32), "job fill 1": (16, 144), "job": (12, 288)}
    run_until_idle(lone)
    assert lone.scheduler.gap_filler.stats.fill_tokens == 3 * BLOCK_SIZE


@pytest.mark.parametrize(
    "specs",
    [[COMPRESSED], [LATENT, WINDOW], [LATENT, RING], [LATENT, HOT, INDEXER]],
    ids=["compressed", "window", "ring", "host"],
)
def test_other_caches_of_sparse_attention_leave_gaps_alone(specs: list[KVCacheSpec]) -> None:
    groups = [KVCacheGroupSpec([f"layer {number}"], spec) for number, spec in enumerate(specs)]
    assert find_rule_obstacle(KVCacheConfig(BLOCKS, [], groups)) is Obstacle.OTHER_LAYERS


def test_latent_caches_in_groups_of_their_own_are_known() -> None:
    groups = [KVCacheGroupSpec(["attention"], LATENT), KVCacheGroupSpec(["indexer"], INDEXER)]
    assert find_rule_obstacle(KVCacheConfig(BLOCKS, [], groups)) is None
