"""Reads vLLM's --kv-offloading-size: which connector it gives, whether it can work, and for how many tokens."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from agentcache.config import AgentCacheConfig
from agentcache.engine.cpu_cache.options import OURS, STOCK, is_left_to_vllm, is_steered
from agentcache.engine.vllm.base import VllmConfig, current_platform, get_cgroup_memory_limit
from agentcache.errors import InputError
from agentcache.front_end.token_bytes import count_token_bytes

_OFFLOADING = "OffloadingConnector"
# What vLLM makes of --kv-offloading-backend native.
_NATIVE = (_OFFLOADING, STOCK)
_GIB = 2**30
_SHARED_MEMORY = "/dev/shm"


def steer_offloading(vllm_config: VllmConfig, config: AgentCacheConfig, *, is_connector_given: bool) -> None:
    """Put our connector in the place of the one that vLLM has chosen for --kv-offloading-size.

    `is_connector_given`: there is a --kv-transfer-config as well, whose connector vLLM has replaced without a word.

    Raises InputError for what cannot work.
    """
    transfer = vllm_config.kv_transfer_config
    if vllm_config.cache_config.kv_offloading_size is None or transfer is None:
        return
    is_native = transfer.kv_connector in _NATIVE
    steered = is_native and is_steered(config) and not is_left_to_vllm(vllm_config)
    _check_size(vllm_config, steered=steered)
    if steered and is_connector_given:
        raise InputError(
            "--kv-offloading-size and --kv-transfer-config: leave one out; the size alone gives the tier that policy "
            f"{config.policy} steers, the config alone the connector that it names, which is left to vLLM"
        )
    if steered:
        transfer.kv_connector, transfer.kv_connector_module_path = OURS
    elif is_native and not is_connector_given and current_platform.is_cpu():
        ours = "" if is_steered(config) else ", or take policy agentcache with tier.enabled, whose tier runs there"
        raise InputError(
            f"--kv-offloading-size: vLLM's {transfer.kv_connector} does not run on its CPU backend; leave it out{ours}"
        )
    elif transfer.kv_connector == _OFFLOADING and not current_platform.is_cpu():
        _check_shared_memory(vllm_config)


def _check_size(config: VllmConfig, *, steered: bool) -> None:
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


def _check_shared_memory(config: VllmConfig) -> None:
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
    return int(size_gib * _GIB / token_bytes)
