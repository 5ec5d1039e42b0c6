"""Tells which KV connector an engine's CPU cache has: ours, which the policy steers, or vLLM's."""

from __future__ import annotations

from agentcache.config import AgentCacheConfig
from agentcache.engine.vllm.base import KVTransferConfig, VllmConfig
from agentcache.errors import InputError
from agentcache.models.geometry import read_geometry
from agentcache.policy.registry import find_policy

# Its name, and the module that has it.
OURS = ("TierConnector", "agentcache.engine.cpu_cache.connector")
STOCK = "SimpleCPUOffloadConnector"


def make_transfer_config(host_bytes: int, *, steered: bool, lazy: bool) -> KVTransferConfig:
    """Make vLLM's configuration of a CPU cache of so many bytes, over all ranks.

    Where it is not steered, blocks are stored there when they are computed or, if `lazy`, when they are about to be
    evicted.
    """
    name, module = OURS if steered else (STOCK, None)
    return KVTransferConfig(
        kv_connector=name,
        kv_connector_module_path=module,
        kv_role="kv_both",
        kv_connector_extra_config={"cpu_bytes_to_use": host_bytes, "lazy_offload": lazy},
    )


def is_steered(config: AgentCacheConfig) -> bool:
    """Tell whether the policy is to steer the CPU cache."""
    return config.tier.enabled and find_policy(config.policy).steers_tier


def names_ours(vllm_config: VllmConfig) -> bool:
    """Tell whether the engine was to have our connector, whatever came of it."""
    transfer = vllm_config.kv_transfer_config
    return transfer is not None and (transfer.kv_connector, transfer.kv_connector_module_path) == OURS


def is_left_to_vllm(vllm_config: VllmConfig) -> bool:
    """Tell whether --kv-offloading-size is left to vLLM's connector: ours needs a layer that keeps all tokens.

    Without prefix caching ours switches itself off.
    """
    if vllm_config.cache_config.kv_offloading_size is None:
        return False
    if vllm_config.model_config.is_attention_free and vllm_config.cache_config.enable_prefix_caching:
        return True
    try:
        attention = read_geometry(vllm_config.model_config.hf_text_config).attention
    except InputError:
        return False  # Costs are then unknown as well, of which the log tells.
    return all(layers.window is not None for layers in attention)
