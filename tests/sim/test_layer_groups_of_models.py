"""The groups that the simulator's engine has are those that vLLM makes of the published models' layers."""

from __future__ import annotations

import pytest
from made_simulation import make_engine
from vllm.v1.kv_cache_interface import KVCacheSpec, MambaSpec

from agentcache.models.catalog import resolve_model
from agentcache.models.shapes import SHAPES
from agentcache.policy.presets import count_parameters


def group(model: str, **shape: object) -> tuple[list[tuple[int, str]], int, int]:
    """Layers and kind of each group; a block's tokens; the blocks of a cache of 65,536 tokens."""
    engine = make_engine(resolve_model(f"shape:{model}").path, cache_tokens=65_536, **shape)
    config = engine.scheduler.kv_cache_config
    specs: list[tuple[int, KVCacheSpec]] = [
        (len(group.layer_names), group.kv_cache_spec) for group in config.kv_cache_groups
    ]
    return [(layers, type(spec).__name__) for layers, spec in specs], engine.block_size, config.num_blocks


def test_gpt_oss_has_windows_beside_full_attention() -> None:
    groups, block_size, blocks = group("gpt-oss-20b")
    assert groups == [(12, "SlidingWindowSpec"), (12, "FullAttentionSpec")]
    assert block_size == 16
    # Half of a request of full length; windows and what a step computes add little.
    assert 65_536 // 16 < blocks < 1.2 * 65_536 // 16


def test_windows_are_kept_as_vllm_keeps_them_by_default() -> None:
    engine = make_engine(resolve_model("shape:gpt-oss-20b").path, cache_tokens=65_536)
    default = engine.scheduler.cache_config.prefix_cache_retention_interval
    assert engine.scheduler.kv_cache_config.prefix_cache_retention_interval == default == 0


def test_qwen3_next_has_blocks_as_long_as_its_states() -> None:
    groups, block_size, _ = group("qwen3-next-80b-a3b", tensor_parallel_size=1)
    assert groups == [(12, "MambaSpec")] * 3 + [(12, "FullAttentionSpec")]
    # A state takes 1.1 MB in the model's own type, a token's keys and values 2 KB.
    assert block_size == 544


def test_qwen3_5_keeps_its_states_in_32_bits() -> None:
    groups, block_size, _ = group("qwen3.5-9b")
    assert groups == [(8, "MambaSpec")] * 3 + [(8, "FullAttentionSpec")]
    # A state takes 2.1 MB, a token's keys and values 4 KB.
    assert block_size == 528


def test_nemotron_keeps_a_block_for_writes_within_a_step() -> None:
    engine = make_engine(resolve_model("shape:nemotron-h-8b").path, cache_tokens=65_536)
    specs = [group.kv_cache_spec for group in engine.scheduler.kv_cache_config.kv_cache_groups]
    assert [spec.num_prefill_checkpoint_blocks for spec in specs if isinstance(spec, MambaSpec)] == [1] * 6


def test_latents_are_cached_and_computed_in_chunks_as_on_a_gpu() -> None:
    """On most CPUs vLLM has no prefix caching for MLA, and computes a prompt in one step, however long."""
    engine = make_engine(resolve_model("shape:deepseek-v2-lite").path, cache_tokens=65_536, max_num_seqs=8)
    scheduler = engine.scheduler
    assert scheduler.kv_cache_manager.enable_caching
    assert scheduler.scheduler_config.enable_chunked_prefill
    assert scheduler.max_num_scheduled_tokens == scheduler.scheduler_config.max_num_batched_tokens == 8192


BILLIONS = {
    "qwen3-30b-a3b": 30.5,
    "qwen3-next-80b-a3b": 80,
    # Without its image encoder and its layer for drafts.
    "qwen3.5-9b": 8.95,
    "gpt-oss-20b": 20.9,
    "gpt-oss-120b": 117,
    "gemma-3-12b": 11.8,
    "kimi-k2": 1026,
    "glm-4.5-air": 107,
    "minimax-m2": 229,
    "deepseek-v3": 671,
    "deepseek-v2-lite": 15.7,
    "nemotron-h-8b": 8.1,
    "llama-4-scout": 108,
}


@pytest.mark.parametrize(("model", "billions"), list(BILLIONS.items()))
def test_published_models_have_the_published_parameters(model: str, billions: float) -> None:
    assert count_parameters(SHAPES[model]) / 1e9 == pytest.approx(billions, rel=0.01)
