"""One scheduler after another over the same workers: what is in the host's memory is found by nobody any more."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector import SimpleCPUOffloadConnector

from agentcache.config import AgentCacheConfig
from agentcache.engine.tier.connector import TierConnector
from agentcache.engine.tier.options import is_steered
from agentcache.errors import InputError


def can_be_succeeded(connector: KVConnectorBase_V1, vllm_config: VllmConfig, config: AgentCacheConfig) -> bool:
    """Tell whether a scheduler under `config` can take over the workers of `connector`, that of `vllm_config`.

    Others keep more than block numbers, and --kv-offloading-size gives policies that steer the host's memory another
    connector than the rest.
    """
    if isinstance(connector, TierConnector):
        return connector.tier is not None and is_steered(config)
    is_given = vllm_config.cache_config.kv_offloading_size is None
    return type(connector) is SimpleCPUOffloadConnector and (is_given or not is_steered(config))


def want_the_same(vllm_config: VllmConfig, connector: KVConnectorBase_V1) -> None:
    """Let the configuration name the class of `connector` for the next scheduler.

    When its engine core is up, vLLM puts the name there again that it has for --kv-offloading-size.
    """
    if (transfer := vllm_config.kv_transfer_config) is not None:
        transfer.kv_connector = type(connector).__name__


def take_over(old: KVConnectorBase_V1, new: KVConnectorBase_V1) -> None:
    """Let the copies of `new` be counted on from those of `old`, all of which have ended.

    vLLM's workers take a number that they have seen for done, so a copy of that number would never be waited for. The
    tiers of a process share their numbers.

    Raises:
        InputError: Copies of `old` are under way, or `new` does not steer the host's memory as `old` did.
    """
    if isinstance(old, TierConnector) and isinstance(new, TierConnector):
        if new.tier is None:
            raise InputError("the engine cannot change its policy: the next one does not steer the host's memory")
        return
    before: Any = getattr(old, "scheduler_manager", None)
    after: Any = getattr(new, "scheduler_manager", None)
    if before is None or after is None:
        # There is no prefix caching, so nothing is copied.
        return
    if before._reqs_to_load or before._abandoned_reqs_to_load:
        raise InputError("the engine cannot change its policy: KV is on its way from the host's memory")
    after._load_event_counter = before._load_event_counter
    after._store_event_counter = before._store_event_counter
