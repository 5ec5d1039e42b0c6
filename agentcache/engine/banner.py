"""What an engine says of itself once it is ready: one line of the log."""

from __future__ import annotations

from vllm.config import VllmConfig

from agentcache.config import AgentCacheConfig
from agentcache.engine.blocks.evictor_inputs import describe_costs
from agentcache.engine.segments.obstacles import Reason
from agentcache.engine.tier.link_costs import describe_link
from agentcache.policy.registry import Policy


def write_banner(
    vllm_config: VllmConfig,
    config: AgentCacheConfig,
    policy: Policy,
    *,
    fills_gaps: bool,
    obstacle: Reason | None,
    steers_tier: bool,
    tier_obstacle: Reason | None,
) -> str:
    """Write policy, tool-call parser, costs and their source, and what is reused and steered, or why not."""
    parts = [f"agentcache: policy {policy.name}"]
    if config.evictor is not None:
        parts[0] += f" with the evictor of {config.evictor}"
    if policy.runtime is not None:
        parts.append(f"tool calls read by {config.runtime.tool_parser or 'nobody, for want of a --tool-call-parser'}")
    if policy.name not in ("vllm", "lru"):
        parts.append(f"costs {describe_costs(vllm_config, config)}")
    if fills_gaps:
        parts.append("multi-segment reuse on")
    elif obstacle is not None:
        parts.append(f"prefix reuse only: {obstacle.text}")
    if steers_tier:
        parts.append(f"blocks in the host's memory {describe_link(vllm_config, config)}")
    elif tier_obstacle is not None:
        parts.append(f"the host's memory is vLLM's own tier, not steered: {tier_obstacle.text}")
    return "; ".join(parts) + "."
