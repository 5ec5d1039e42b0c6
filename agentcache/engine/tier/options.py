"""vLLM's --kv-offloading-size, for a policy that steers the host's memory."""

from __future__ import annotations

from vllm.config import KVTransferConfig, VllmConfig

from agentcache.config import AgentCacheConfig
from agentcache.engine.compat import check_tier
from agentcache.engine.tier.size import check_size
from agentcache.errors import InputError
from agentcache.models.geometry import read_geometry
from agentcache.policy.registry import find_policy

_MODULE = "agentcache.engine.tier.connector"
_NAME = "TierConnector"
_STOCK = "SimpleCPUOffloadConnector"
# What vLLM makes of --kv-offloading-backend native.
_NATIVE = ("OffloadingConnector", _STOCK)


def make_transfer_config(host_bytes: int, *, steered: bool, lazy: bool) -> KVTransferConfig:
    """Make vLLM's configuration of a cache of so many bytes, over all ranks, in the host's memory.

    Where nobody steers it, blocks are stored there when they are computed or, if `lazy`, when they are about to be
    evicted.
    """
    return KVTransferConfig(
        kv_connector=_NAME if steered else _STOCK,
        kv_connector_module_path=_MODULE if steered else None,
        kv_role="kv_both",
        kv_connector_extra_config={"cpu_bytes_to_use": host_bytes, "lazy_offload": lazy},
    )


def is_steered(config: AgentCacheConfig) -> bool:
    """Tell whether the policy is to steer the host's memory."""
    return config.tier.enabled and find_policy(config.policy).tier_orders is not None


def steer_offloading(vllm_config: VllmConfig, config: AgentCacheConfig) -> None:
    """Put our connector in the place of the one that vLLM has chosen for --kv-offloading-size.

    Raises InputError for a size that cannot work.
    """
    transfer = vllm_config.kv_transfer_config
    if vllm_config.cache_config.kv_offloading_size is None or transfer is None:
        return
    steered = transfer.kv_connector in _NATIVE and is_steered(config) and not _has_windows_alone(vllm_config)
    check_size(vllm_config, steered=steered)
    if steered:
        check_tier()
        transfer.kv_connector, transfer.kv_connector_module_path = _NAME, _MODULE


def leaves_windows_alone(vllm_config: VllmConfig) -> bool:
    """Tell whether --kv-offloading-size is left to vLLM's connector because no layer of the model keeps all tokens.

    Ours needs one that does.
    """
    return vllm_config.cache_config.kv_offloading_size is not None and _has_windows_alone(vllm_config)


def _has_windows_alone(vllm_config: VllmConfig) -> bool:
    try:
        attention = read_geometry(vllm_config.model_config.hf_text_config).attention
    except InputError:
        return False  # Costs are then unknown as well, of which the log tells.
    return all(layers.window is not None for layers in attention)
