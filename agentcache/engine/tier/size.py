"""Whether the size that --kv-offloading-size gives can work, told before the engine starts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch

from agentcache.engine.vllm.base import STR_DTYPE_TO_TORCH_DTYPE, current_platform, get_cgroup_memory_limit
from agentcache.engine.vllm.config import VllmConfig
from agentcache.errors import InputError
from agentcache.models.geometry import read_geometry

OFFLOADING = "OffloadingConnector"
_GIB = 2**30
_SHARED_MEMORY = "/dev/shm"


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
    engines = config.parallel_config.data_parallel_size_local
    limit_gib, owner = _find_limit()
    if size_gib * engines > limit_gib:
        each = f" for each of {engines} engines" if engines > 1 else ""
        raise InputError(f"--kv-offloading-size {size_gib:g}{each}: this {owner} has {limit_gib:.0f} GiB; give less")
    context_gib = config.model_config.max_model_len * count_token_bytes(config) / _GIB
    if steered and size_gib < context_gib:
        raise InputError(
            f"--kv-offloading-size {size_gib:g}: one context of {config.model_config.max_model_len:,} tokens takes "
            f"{context_gib:.3g} GiB; give at least that, or a lower --max-model-len"
        )


def check_shared_memory(config: VllmConfig) -> None:
    """Raise InputError for a size that does not fit /dev/shm, where vLLM's OffloadingConnector puts it."""
    size_gib = config.cache_config.kv_offloading_size
    if size_gib is None or not Path(_SHARED_MEMORY).is_dir():
        return
    free_gib = shutil.disk_usage(_SHARED_MEMORY).free / _GIB
    if size_gib * config.parallel_config.data_parallel_size_local > free_gib:
        raise InputError(
            f"--kv-offloading-size {size_gib:g}: vLLM's connector takes it from {_SHARED_MEMORY}, which has "
            f"{free_gib:.3g} GiB free; give less, or start the container with --ipc=host or a larger --shm-size"
        )


def _find_limit() -> tuple[float, str]:
    """Find how many GiB processes can have here, and what sets that: the machine, or the container that they are in."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    container = get_cgroup_memory_limit()
    if container is not None and container < machine:
        return container / _GIB, "container"
    return machine / _GIB, "machine"


def count_host_tokens(config: VllmConfig) -> int:
    """Count the tokens of contexts of full length that the CPU cache of each engine has room for.

    0 without such memory, and for a model that keeps nothing of tokens.
    """
    size_gib = config.cache_config.kv_offloading_size
    if size_gib is None or not (token_bytes := count_token_bytes(config)):
        return 0
    return int(size_gib * _GIB * _count_sharers(config) / token_bytes)


def _count_sharers(config: VllmConfig) -> int:
    """Count the ranks that share one copy of what all of them keep.

    vLLM's OffloadingConnector keeps latent attention's vector once (`replicated_layout`, of `vllm.distributed.
    kv_transfer.kv_connector.v1.offloading.config`), SimpleCPUOffloadConnector and ours once a rank.
    """
    transfer, parallel = config.kv_transfer_config, config.parallel_config
    ranks = parallel.tensor_parallel_size
    shares = (
        transfer is not None
        and transfer.kv_connector == OFFLOADING
        and config.model_config.use_mla
        and parallel.world_size == ranks
        and parallel.decode_context_parallel_size == 1
        and parallel.distributed_executor_backend == "mp"
        and parallel.nnodes_within_dp == 1
        and not current_platform.is_rocm()
    )
    return ranks if shares else 1


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
