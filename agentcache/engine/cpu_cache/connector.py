"""The connector that vLLM loads for the CPU cache: ours where that can be steered, vLLM's own elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentcache.config import AgentCacheConfig, is_on
from agentcache.config_reader import read_config
from agentcache.engine.blocks.evictor_inputs import find_cost_obstacle
from agentcache.engine.cpu_cache.options import is_steered
from agentcache.engine.segments.obstacles import Reason, find_config_obstacle, has_full_attention_alone
from agentcache.engine.start_cause import refuse_start
from agentcache.engine.vllm.base import VllmConfig, current_platform
from agentcache.engine.vllm.connector import CopiesDone, CopyingConnector
from agentcache.engine.vllm.copiers import CopyOrders
from agentcache.engine.vllm.types import (
    KVCacheConfig,
    KVConnectorOutput,
    Request,
    SchedulerOutput,
    generate_scheduler_kv_cache_config,
)
from agentcache.engine.vllm.workers import KVConnectorBase_V1, KVConnectorRole, SimpleCPUOffloadConnector
from agentcache.policy.registry import find_policy

if TYPE_CHECKING:
    from agentcache.engine.cpu_cache.tier import Tier


class TierObstacle(Reason):
    """The reasons beside those for which blocks are reused as prefixes only."""

    COSTS_UNKNOWN = "costs-unknown", "what the model's blocks cost is not known"
    # vLLM's own connector switches itself off.
    PREFIX_CACHING_OFF = "prefix-caching-off", "prefix caching is off, so nothing is kept there"
    SEGMENTS_OFF = "segments-off", "segments.enabled is false"
    # Who follows them is not told of blocks that come from the CPU cache.
    KV_EVENTS = "kv-events", "KV events are on"
    SPECULATIVE_DECODING = "speculative-decoding", "speculative decoding is on"
    # The copies were tried with layers of one kind.
    LAYER_KINDS = "layer-kinds", "the model has several kinds of layers, or some that do not keep all tokens"


def find_tier_obstacle(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, config: AgentCacheConfig
) -> Reason | None:
    """Find why a policy that steers the tier cannot do so on an engine like that; None if it can."""
    events, segments = vllm_config.kv_events_config, find_policy(config.policy).segments
    obstacles = {
        # Another policy than the chosen one is in force.
        TierObstacle.COSTS_UNKNOWN: find_cost_obstacle(vllm_config) is not None,
        TierObstacle.PREFIX_CACHING_OFF: not vllm_config.cache_config.enable_prefix_caching,
        TierObstacle.SEGMENTS_OFF: not is_on(config.segments.enabled, segments),
        TierObstacle.KV_EVENTS: events is not None and events.enable_kv_cache_events,
        TierObstacle.SPECULATIVE_DECODING: vllm_config.speculative_config is not None,
    }
    own = next((obstacle for obstacle, holds in obstacles.items() if holds), None)
    found = own or find_config_obstacle(vllm_config, kv_cache_config)
    return found or (None if has_full_attention_alone(kv_cache_config) else TierObstacle.LAYER_KINDS)


class TierConnector(CopyingConnector):
    """What `kv_connector` names. Scheduler and workers choose alike: each knows options and layers.

    A worker may know its layers in more detail, which tells the scheduler nothing.
    """

    def __new__(  # type: ignore[misc]  # vLLM's own is none of ours.
        cls, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> KVConnectorBase_V1:
        """Make ours, or vLLM's `SimpleCPUOffloadConnector`. Raises InputError where that one cannot run."""
        config = read_config(vllm_config.additional_config)
        seen = generate_scheduler_kv_cache_config([kv_cache_config])
        if is_steered(config) and find_tier_obstacle(vllm_config, seen, config) is None:
            return super().__new__(cls)
        if role is KVConnectorRole.WORKER and current_platform.is_cpu():
            raise refuse_start("--kv-offloading-size: vLLM's SimpleCPUOffloadConnector does not run on its CPU backend")
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

    def has_pending_push_work(self) -> bool:
        """Tell whether the engine must go on for the sake of copies."""
        return self._tier.needs_step

    def reset_cache(self) -> bool | None:
        """Forget what is in the CPU cache. Return False while blocks are on their way from it."""
        return self._tier.clear()
