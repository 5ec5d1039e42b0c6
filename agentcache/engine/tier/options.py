"""vLLM's --kv-offloading-size, for a policy that steers the CPU cache."""

from __future__ import annotations

from agentcache.config import AgentCacheConfig
from agentcache.engine.tier.size import OFFLOADING, check_shared_memory, check_size
from agentcache.engine.vllm.base import current_platform
from agentcache.engine.vllm.compat import check_tier
from agentcache.engine.vllm.config import KVTransferConfig, VllmConfig
from agentcache.errors import InputError
from agentcache.models.geometry import read_geometry
from agentcache.policy.registry import find_policy

_MODULE = "agentcache.engine.tier.connector"
_NAME = "TierConnector"
_STOCK = "SimpleCPUOffloadConnector"
# What vLLM makes of --kv-offloading-backend native.
_NATIVE = (OFFLOADING, _STOCK)


def make_transfer_config(host_bytes: int, *, steered: bool, lazy: bool) -> KVTransferConfig:
    """Make vLLM's configuration of a CPU cache of so many bytes, over all ranks.

    Where it is not steered, blocks are stored there when they are computed or, if `lazy`, when they are about to be
    evicted.
    """
    return KVTransferConfig(
        kv_connector=_NAME if steered else _STOCK,
        kv_connector_module_path=_MODULE if steered else None,
        kv_role="kv_both",
        kv_connector_extra_config={"cpu_bytes_to_use": host_bytes, "lazy_offload": lazy},
    )


def is_steered(config: AgentCacheConfig) -> bool:
    """Tell whether the policy is to steer the CPU cache."""
    return config.tier.enabled and find_policy(config.policy).tier_orders is not None


def steer_offloading(vllm_config: VllmConfig, config: AgentCacheConfig, *, is_connector_given: bool) -> None:
    """Put our connector in the place of the one that vLLM has chosen for --kv-offloading-size.

    `is_connector_given`: there is a --kv-transfer-config as well, whose connector vLLM has replaced without a word.

    Raises InputError for what cannot work.
    """
    transfer = vllm_config.kv_transfer_config
    if vllm_config.cache_config.kv_offloading_size is None or transfer is None:
        return
    is_native = transfer.kv_connector in _NATIVE
    steered = is_native and is_steered(config) and not _lacks_full_attention(vllm_config)
    check_size(vllm_config, steered=steered)
    if steered and is_connector_given:
        raise InputError(
            "--kv-offloading-size and --kv-transfer-config: leave one out; the size alone gives the tier that policy "
            f"{config.policy} steers, the config alone the connector that it names, which is left to vLLM"
        )
    if steered:
        check_tier()
        transfer.kv_connector, transfer.kv_connector_module_path = _NAME, _MODULE
    elif is_native and not is_connector_given and current_platform.is_cpu():
        ours = "" if is_steered(config) else ", or take policy agentcache with tier.enabled, whose tier runs there"
        raise InputError(
            f"--kv-offloading-size: vLLM's {transfer.kv_connector} does not run on its CPU backend; leave it out{ours}"
        )
    elif transfer.kv_connector == OFFLOADING and not current_platform.is_cpu():
        check_shared_memory(vllm_config)


def names_ours(vllm_config: VllmConfig) -> bool:
    """Tell whether the engine was to have our connector, whatever came of it."""
    transfer = vllm_config.kv_transfer_config
    return transfer is not None and (transfer.kv_connector, transfer.kv_connector_module_path) == (_NAME, _MODULE)


def is_left_to_vllm(vllm_config: VllmConfig) -> bool:
    """Tell whether --kv-offloading-size is left to vLLM's connector because no layer of the model keeps all tokens.

    Ours needs one that does.
    """
    return vllm_config.cache_config.kv_offloading_size is not None and _lacks_full_attention(vllm_config)


def _lacks_full_attention(vllm_config: VllmConfig) -> bool:
    """Tell whether layers have windows or recurrent states alone. Without prefix caching ours switches itself off."""
    if vllm_config.model_config.is_attention_free and vllm_config.cache_config.enable_prefix_caching:
        return True
    try:
        attention = read_geometry(vllm_config.model_config.hf_text_config).attention
    except InputError:
        return False  # Costs are then unknown as well, of which the log tells.
    return all(layers.window is not None for layers in attention)
