"""The KV cache groups that vLLM makes of a model's layers on a GPU, from its config alone: no layer is built."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.utils.math_utils import cdiv
from vllm.utils.torch_utils import get_kv_cache_torch_dtype
from vllm.v1.core.kv_cache_utils import get_kv_cache_groups
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from agentcache.models.geometry import read_geometry, read_layer_types

# FlashAttention's pages are multiples of it. A page is made as long as a recurrent state, which is padded to it.
_PAGE_TOKENS = 16
_RECURRENT = ("linear_attention", "mamba")


def make_layer_groups(config: VllmConfig) -> list[KVCacheGroupSpec]:
    """Group the layers of the configured model as vLLM does. A recurrent model's blocks are made as long as its states.

    The blocks' length then is in `config.cache_config`, as vLLM puts it there.
    """
    hf_config = config.model_config.hf_text_config
    types = read_layer_types(hf_config)
    # As with FlashAttention: layers are apart in memory, and groups have as many layers each as they can.
    config.cache_config.kv_cache_layout = config.cache_config.kv_cache_layout or "LBNHC"
    attention = _make_attention(config)
    if types is None:
        return get_kv_cache_groups(config, dict.fromkeys(_name_layers(config), attention))
    recurrent: KVCacheSpec | None = None
    if any(one in _RECURRENT for one in types):
        attention, recurrent = _align_pages(config, attention, _make_recurrent(config))
    specs: dict[str, KVCacheSpec] = {}
    for name, one in zip(_name_layers(config), types, strict=True):
        if one in _RECURRENT:
            assert recurrent is not None
            specs[name] = recurrent
        elif one == "attention" or one.endswith("_attention"):
            specs[name] = _narrow(attention, one, hf_config)
    return get_kv_cache_groups(config, specs)


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


def _name_layers(config: VllmConfig) -> list[str]:
    types = read_layer_types(config.model_config.hf_text_config)
    parallel = config.parallel_config
    layers = config.model_config.get_num_layers(parallel) if types is None else len(types)
    return [f"layer.{number}" for number in range(layers)]


def _make_attention(config: VllmConfig) -> AttentionSpec:
    model, block_size = config.model_config, config.cache_config.block_size
    dtype = model.dtype
    assert isinstance(dtype, torch.dtype)
    kind = MLAAttentionSpec if model.use_mla else FullAttentionSpec
    return kind(
        block_size=block_size,
        num_kv_heads=model.get_num_kv_heads(config.parallel_config),
        head_size=model.get_head_size(),
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
    writes_within = "mamba" in (read_layer_types(hf_config) or ())
    return MambaSpec(
        block_size=cache.block_size,
        shapes=((state.convolution_numbers // ranks,), (state.state_numbers // ranks,)),
        dtypes=(dtype, get_kv_cache_torch_dtype(state_dtype, dtype)),
        mamba_cache_mode="align",
        num_prefill_checkpoint_blocks=int(writes_within),
        prefill_checkpoint_alignment=1 if writes_within else None,
    )


def _align_pages(config: VllmConfig, attention: AttentionSpec, recurrent: MambaSpec) -> tuple[AttentionSpec, MambaSpec]:
    """Lengthen blocks until a page of attention holds a state, and pad states to that, as vLLM does for its backend."""
    token_bytes = attention.page_size_bytes // attention.block_size
    block_size = max(attention.block_size, _PAGE_TOKENS * cdiv(recurrent.page_size_bytes, _PAGE_TOKENS * token_bytes))
    config.cache_config.block_size = config.cache_config.mamba_block_size = block_size
    attention = replace(attention, block_size=block_size)
    return attention, replace(recurrent, block_size=block_size, page_size_padded=attention.page_size_bytes)


def _narrow(attention: AttentionSpec, layer_type: str, hf_config: Any) -> AttentionSpec:
    shared: dict[str, Any] = {
        "block_size": attention.block_size,
        "num_kv_heads": attention.num_kv_heads,
        "head_size": attention.head_size,
        "dtype": attention.dtype,
    }
    if layer_type == "sliding_attention":
        return SlidingWindowSpec(**shared, sliding_window=hf_config.sliding_window)
    if layer_type == "chunked_attention":
        return ChunkedLocalAttentionSpec(**shared, attention_chunk_size=hf_config.attention_chunk_size)
    return attention
