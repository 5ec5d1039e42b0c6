"""The second cache of a simulated engine: its blocks are the GPU's, as many for the same tokens, and as large."""

from __future__ import annotations

import pytest
from made_simulation import make_engine

from agentcache.engine.cpu_cache.link import find_block_bytes
from agentcache.models.catalog import resolve_model

BLOCK_SIZE = 16


@pytest.mark.parametrize(
    ("model", "block_bytes"),
    [
        # Bytes of a token in bfloat16, times the layers of a group: the others of its layers are in other blocks.
        ("llama-3.1-8b", 2 * 2 * 8 * 128 * 32),
        ("gemma-3-12b", 2 * 2 * 8 * 256 * 8),
        ("gpt-oss-20b", 2 * 2 * 8 * 64 * 12),
        # One vector is keys and values.
        ("deepseek-v2-lite", 2 * 576 * 27),
    ],
)
def test_as_many_tokens_take_as_many_blocks_in_either_cache(model: str, block_bytes: int) -> None:
    path = resolve_model(f"shape:{model}").path
    engine = make_engine(path, "vllm", cache_tokens=160_000, host_tokens=160_000, dtype="bfloat16")
    scheduler = engine.scheduler
    assert scheduler.connector is not None
    host_blocks = scheduler.connector.scheduler_manager.num_cpu_blocks
    # One of the GPU's is a placeholder.
    assert host_blocks == scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1
    assert find_block_bytes(scheduler) == BLOCK_SIZE * block_bytes
    assert engine.has_host_cache


def test_a_cache_is_of_whole_blocks(tiny_model_path: str) -> None:
    engine = make_engine(tiny_model_path, "vllm", cache_tokens=1000)
    assert engine.cache_tokens == 62 * BLOCK_SIZE
    assert not engine.has_host_cache
