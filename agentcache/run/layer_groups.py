"""The KV cache groups that vLLM makes of a model's layers on a GPU, from its config alone: no layer is built."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from agentcache.engine.vllm.base import VllmConfig, cdiv, get_kv_cache_torch_dtype
from agentcache.engine.vllm.compat import find_moved
from agentcache.engine.vllm.types import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from agentcache.models.config_fields import ConfigFields, shares_cache
from agentcache.models.geometry import is_attention, read_geometry, read_layer_types
from agentcache.models.recurrent_layers import RECURRENT

# FlashAttention's pages are multiples of it. A page is made as long as a recurrent state, which is padded to it.
_PAGE_TOKENS = 16


def make_layer_groups(config: VllmConfig) -> list[KVCacheGroupSpec]:
    """Group the layers of the configured model as vLLM does. A recurrent model's blocks are made as long as its states.

    The blocks' length then is in `config.cache_config`, as vLLM puts it there.
    """
    types = _read_types(config)
    # As with FlashAttention: layers are apart in memory, and groups have as many layers each as they can.
    config.cache_config.kv_cache_layout = config.cache_config.kv_cache_layout or "LBNHC"
    layers = ConfigFields(config.model_config.hf_text_config).split(len(types))
    specs: dict[str, KVCacheSpec] = {}
    recurrent = _lengthen_blocks(config) if any(one in RECURRENT for one in types) else None
    for layer, one in zip(layers, types, strict=True):
        if one in RECURRENT:
            assert recurrent is not None
            specs[f"layer.{layer.index}"] = recurrent
        elif is_attention(one) and not shares_cache(layer):
            specs[f"layer.{layer.index}"] = _narrow(_make_attention(config, layer.index), layer, one)
    groups: list[KVCacheGroupSpec] = find_moved("get_kv_cache_groups")(config, specs)
    return groups


def count_blocks(config: VllmConfig, groups: list[KVCacheGroupSpec], cache_tokens: int) -> int:
    """Count the blocks of all groups for a cache of so many tokens, in requests of the model's full length.

    So vLLM counts the other way round, in the size that it logs at the start.
    """
    length = config.model_config.max_model_len
    specs = [group.kv_cache_spec for group in groups]
    if len(specs) == 1:
        return cache_tokens // config.cache_config.block_size
    a_request = sum(cdiv(spec.max_memory_usage_bytes(config), spec.page_size_bytes) for spec in specs)
    return cache_tokens * a_request // length


def _read_types(config: VllmConfig) -> list[str]:
    layers = config.model_config.get_num_layers(config.parallel_config)
    return read_layer_types(config.model_config.hf_text_config) or [""] * layers


def _make_attention(config: VllmConfig, index: int = 0) -> AttentionSpec:
    model, block_size = config.model_config, config.cache_config.block_size
    dtype = model.dtype
    assert isinstance(dtype, torch.dtype)
    kind = MLAAttentionSpec if model.use_mla else FullAttentionSpec
    layer = model.model_arch_config[index]
    return kind(
        block_size=block_size,
        num_kv_heads=model.get_num_kv_heads(config.parallel_config, layer),
        head_size=layer.head_size,
        dtype=dtype,
    )


def _make_recurrent(config: VllmConfig) -> MambaSpec:
    """Make one state of each GPU; its shape stands for the numbers of both its parts."""
    hf_config = config.model_config.hf_text_config
    state = read_geometry(hf_config).recurrent
    assert state is not None
    ranks, cache = config.parallel_config.tensor_parallel_size, config.cache_config
    cache.mamba_cache_mode = "align"
    dtype = get_kv_cache_torch_dtype(cache.mamba_cache_dtype, config.model_config.dtype)
    state_dtype = cache.mamba_ssm_cache_dtype
    if state_dtype == "auto":
        state_dtype = getattr(hf_config, "mamba_ssm_dtype", None) or "auto"
    # Mamba2's kernel writes the state at a prompt's last block boundary within a step: vLLM keeps a block for it.
    writes_within = state.kind == "mamba2"
    return MambaSpec(
        block_size=cache.block_size,
        shapes=((state.convolution_numbers // ranks,), (state.state_numbers // ranks,)),
        dtypes=(dtype, get_kv_cache_torch_dtype(state_dtype, dtype)),
        mamba_cache_mode="align",
        num_prefill_checkpoint_blocks=int(writes_within),
        prefill_checkpoint_alignment=1 if writes_within else None,
    )


def _lengthen_blocks(config: VllmConfig) -> MambaSpec:
    """Lengthen blocks until a page of attention holds a state, and pad states to that, as vLLM does for its backend."""
    attention, recurrent = _make_attention(config), _make_recurrent(config)
    token_bytes = attention.page_size_bytes // attention.block_size
    block_size = max(attention.block_size, _PAGE_TOKENS * cdiv(recurrent.page_size_bytes, _PAGE_TOKENS * token_bytes))
    config.cache_config.block_size = config.cache_config.mamba_block_size = block_size
    return replace(recurrent, block_size=block_size, page_size_padded=token_bytes * block_size)


def _narrow(attention: AttentionSpec, layer: ConfigFields, layer_type: str) -> AttentionSpec:
    shared: dict[str, Any] = {
        "block_size": attention.block_size,
        "num_kv_heads": attention.num_kv_heads,
        "head_size": attention.head_size,
        "dtype": attention.dtype,
    }
    if layer_type == "sliding_attention":
        return SlidingWindowSpec(**shared, sliding_window=layer.read_number("sliding_window"))
    if layer_type == "chunked_attention":
        return ChunkedLocalAttentionSpec(**shared, attention_chunk_size=layer.read_number("attention_chunk_size"))
    return attention
