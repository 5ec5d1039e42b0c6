"""Whether the size that --kv-offloading-size gives can work, told before the engine starts."""

from __future__ import annotations

import os

import torch
from vllm.config import VllmConfig
from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE

from agentcache.errors import InputError

_GIB = 2**30


def check_size(config: VllmConfig, *, steered: bool) -> None:
    """Refuse a size that is not positive or more than the machine has; and, if `steered`, one below a context.

    Raises:
        InputError: If the engine could not start with it, or start and keep nothing that a long job could use.
    """
    size_gib = config.cache_config.kv_offloading_size
    if size_gib is None:
        return
    if not size_gib > 0:
        raise InputError(f"--kv-offloading-size {size_gib:g}: give more than 0 GiB, or leave it out")
    machine_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / _GIB
    engines = config.parallel_config.data_parallel_size_local
    if size_gib * engines > machine_gib:
        each = f" for each of {engines} engines" if engines > 1 else ""
        raise InputError(f"--kv-offloading-size {size_gib:g}{each}: this machine has {machine_gib:.0f} GiB; give less")
    context_gib = config.model_config.max_model_len * count_token_bytes(config) / _GIB
    if steered and size_gib < context_gib:
        raise InputError(
            f"--kv-offloading-size {size_gib:g}: one context of {config.model_config.max_model_len:,} tokens takes "
            f"{context_gib:.3g} GiB; give at least that, or a lower --max-model-len"
        )


def count_host_tokens(config: VllmConfig) -> int:
    """Count the tokens that the host's memory of each engine has room for, if every layer keeps them.

    0 without such memory, and for a model that keeps nothing of tokens.
    """
    size_gib = config.cache_config.kv_offloading_size
    if size_gib is None or not (token_bytes := count_token_bytes(config)):
        return 0
    return int(size_gib * _GIB / token_bytes)


def count_token_bytes(config: VllmConfig) -> int:
    """Count the bytes of a token's keys and values over all ranks, if every layer keeps them.

    Several ranks keep the same where there are fewer KV heads than ranks, or latent attention's one vector.
    """
    model, parallel = config.model_config, config.parallel_config
    ranks = parallel.tensor_parallel_size * parallel.prefill_context_parallel_size
    layer_bytes = count_layer_bytes(config, model.get_num_kv_heads(parallel))
    # Decode context parallelism has these ranks share a token's copies out among them.
    return model.get_total_num_hidden_layers() * layer_bytes * ranks // parallel.decode_context_parallel_size


def count_layer_bytes(config: VllmConfig, kv_heads: int) -> int:
    """Count the bytes that a token leaves in one layer's cache with so many KV heads."""
    model = config.model_config
    cache_dtype = config.cache_config.cache_dtype
    dtype = model.dtype if cache_dtype == "auto" else STR_DTYPE_TO_TORCH_DTYPE[cache_dtype]
    # Latent attention keeps one vector for keys and values.
    vectors = 1 if model.use_mla else 2 * kv_heads
    assert isinstance(dtype, torch.dtype)
    return int(vectors * model.get_head_size() * dtype.itemsize)
