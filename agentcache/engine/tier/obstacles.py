"""Why the CPU cache is left to vLLM's own tier where agentcache was to steer it."""

from __future__ import annotations

from agentcache.config import AgentCacheConfig, is_on
from agentcache.engine.segments.layer_rule import has_full_attention_alone
from agentcache.engine.segments.obstacles import Reason
from agentcache.engine.segments.scheduler import MultiSegmentScheduler, find_engine_obstacle
from agentcache.policy.registry import Policy


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


def find_tier_obstacle(scheduler: MultiSegmentScheduler, config: AgentCacheConfig, policy: Policy) -> Reason | None:
    """Find why `policy`, the one in force, cannot steer the tier of this engine; None if it can."""
    obstacles = {
        # Another policy than the chosen one is in force.
        TierObstacle.COSTS_UNKNOWN: policy.tier_orders is None,
        TierObstacle.PREFIX_CACHING_OFF: not scheduler.kv_cache_manager.enable_caching,
        TierObstacle.SEGMENTS_OFF: not is_on(config.segments.enabled, policy.segments),
        TierObstacle.KV_EVENTS: scheduler.enable_kv_cache_events,
        TierObstacle.SPECULATIVE_DECODING: scheduler.vllm_config.speculative_config is not None,
    }
    own = next((obstacle for obstacle, holds in obstacles.items() if holds), None)
    found = own or find_engine_obstacle(scheduler, ignore_connector=True)
    return found or (None if has_full_attention_alone(scheduler.kv_cache_config) else TierObstacle.LAYER_KINDS)
