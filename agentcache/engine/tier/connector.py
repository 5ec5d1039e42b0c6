"""The connector that vLLM loads for the CPU cache: ours where that can be steered, vLLM's own elsewhere."""

from __future__ import annotations

from typing import Any

from agentcache.config_reader import read_config
from agentcache.engine.start_cause import tell_cause
from agentcache.engine.tier.obstacles import find_tier_obstacle
from agentcache.engine.tier.options import is_steered
from agentcache.engine.tier.tier import Tier
from agentcache.engine.vllm.base import current_platform
from agentcache.engine.vllm.config import VllmConfig
from agentcache.engine.vllm.connector import CopyingConnector
from agentcache.engine.vllm.copies import CopiesDone, CopyOrders
from agentcache.engine.vllm.offload import KVConnectorBase_V1, KVConnectorRole, SimpleCPUOffloadConnector
from agentcache.engine.vllm.types import KVCacheConfig, KVConnectorOutput, Request, SchedulerOutput
from agentcache.errors import InputError


class TierConnector(CopyingConnector):
    """What `kv_connector` names. Scheduler and workers choose alike: each knows options and layers."""

    def __new__(  # type: ignore[misc]  # vLLM's own is none of ours.
        cls, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> KVConnectorBase_V1:
        """Make ours, or vLLM's `SimpleCPUOffloadConnector`. Raises InputError where that one cannot run."""
        config = read_config(vllm_config.additional_config)
        if is_steered(config) and find_tier_obstacle(vllm_config, kv_cache_config, config) is None:
            return super().__new__(cls)
        if role is KVConnectorRole.WORKER and current_platform.is_cpu():
            message = "--kv-offloading-size: vLLM's SimpleCPUOffloadConnector does not run on its CPU backend"
            tell_cause(message)
            raise InputError(message)
        return SimpleCPUOffloadConnector(vllm_config, role, kv_cache_config)


class SteeredConnector(CopyingConnector):
    """The scheduler's side where the CPU cache is steered: the tier says what is copied, and hears what has been."""

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, tier: Tier) -> None:
        super().__init__(vllm_config, KVConnectorRole.SCHEDULER, kv_cache_config)
        self._tier = tier

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:  # noqa: ARG002
        """Return no tokens: what is fetched is in the GPU's cache by then. None while the request must wait."""
        return (None, False) if self._tier.make_wait(request) else (0, False)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> CopyOrders:
        """Tell the workers what to copy."""
        return self._tier.begin_copies(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Take over what the workers have copied."""
        done = connector_output.kv_connector_worker_meta
        if isinstance(done, CopiesDone):
            self._tier.end_copies(done)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:  # noqa: ARG002
        """Let the request's blocks be freed."""
        self._tier.forget(request)
        return False, None

    def has_pending_push_work(self) -> bool:
        """Tell whether the engine must go on for the sake of copies."""
        return self._tier.needs_step

    def reset_cache(self) -> bool | None:
        """Forget what is in the CPU cache. Return False while blocks are on their way from it."""
        return self._tier.clear()
