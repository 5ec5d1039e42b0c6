"""Counts the bytes of KV that a token leaves, by the model's layers and how many ranks share them."""

from __future__ import annotations

import torch

from agentcache.engine.vllm.base import STR_DTYPE_TO_TORCH_DTYPE, VllmConfig
from agentcache.errors import InputError
from agentcache.models.geometry import read_geometry


def count_token_bytes(config: VllmConfig) -> int:
    """Count the bytes of a token's keys and values over all ranks: the mean of a context of full length.

    Layers with windows keep less of it, and others nothing. Several ranks keep the same where there are fewer KV heads
    than ranks, or latent attention's one vector.
    """
    model, parallel = config.model_config, config.parallel_config
    ranks = parallel.tensor_parallel_size * parallel.prefill_context_parallel_size
    rank_bytes = _count_mixed_bytes(config)
    if rank_bytes is None:
        layer_bytes = count_layer_bytes(config, model.get_num_kv_heads(parallel))
        rank_bytes = model.get_total_num_hidden_layers() * layer_bytes
    # Decode context parallelism has these ranks share a token's copies out among them.
    return int(rank_bytes * ranks) // parallel.decode_context_parallel_size


def _count_mixed_bytes(config: VllmConfig) -> float | None:
    """Count the mean bytes of a token of a full context on one rank; None for a model whose layers all keep all."""
    model = config.model_config
    try:
        geometry = read_geometry(model.hf_text_config)
    except InputError:
        return None  # Nothing better is known.
    kinds = geometry.attention
    if geometry.recurrent is None and all(each.window is None and not each.shares_cache for each in kinds):
        return None
    length, ranks = model.max_model_len, config.parallel_config.tensor_parallel_size
    kept = 0.0
    for each in kinds:
        if not each.shares_cache:
            share = min(1.0, (each.window or length) / length)
            kept += share * each.layers * max(1, each.kv_heads // ranks) * each.head_numbers
    return kept * _find_dtype(config).itemsize


def count_layer_bytes(config: VllmConfig, kv_heads: int) -> int:
    """Count the bytes that a token leaves in one layer's cache with so many KV heads."""
    model = config.model_config
    # Latent attention keeps one vector for keys and values.
    vectors = 1 if model.use_mla else 2 * kv_heads
    return int(vectors * model.get_head_size() * _find_dtype(config).itemsize)


def _find_dtype(config: VllmConfig) -> torch.dtype:
    """Find the type of the keys and values that are kept."""
    cache_dtype = config.cache_config.cache_dtype
    dtype = config.model_config.dtype if cache_dtype == "auto" else STR_DTYPE_TO_TORCH_DTYPE[cache_dtype]
    assert isinstance(dtype, torch.dtype)
    return dtype
