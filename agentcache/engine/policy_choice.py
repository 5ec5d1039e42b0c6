"""Chooses the policy in force, and writes the line of the log that says at the start what an engine does."""

from __future__ import annotations

import os

from agentcache.config import AgentCacheConfig
from agentcache.engine.blocks.evictor_inputs import describe_costs, find_cost_obstacle
from agentcache.engine.constants import REPORT_URL_VARIABLE
from agentcache.engine.cpu_cache.link import describe_link
from agentcache.engine.segments.obstacles import Reason
from agentcache.engine.vllm.base import ParallelConfig, VllmConfig, init_logger
from agentcache.policy.registry import Policy, find_policy, with_evictor

logger = init_logger("vllm.agentcache")

# The others value blocks by what attention needs of them.
_POLICIES_FOR_ANY_MODEL = ("vllm", "lru")


def choose_policy(vllm_config: VllmConfig, config: AgentCacheConfig) -> Policy:
    """Choose the policy that is asked for; `lru`, and log why, where that cannot value the model's blocks."""
    policy = find_policy(config.policy)
    obstacle = find_cost_obstacle(vllm_config)
    if obstacle is None or policy.name in _POLICIES_FOR_ANY_MODEL:
        return with_evictor(policy, config.evictor)
    logger.warning(
        "%s: policy %s cannot tell what its blocks are worth, which are evicted least recently used first, without "
        "pins or an order of jobs.",
        obstacle,
        policy.name,
    )
    return find_policy("lru")


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
    """Write policy, parser, costs and their source, what is reused and steered or why not, recording and report."""
    parts = [f"agentcache: policy {policy.name}"]
    if config.evictor is not None:
        parts[0] += f" with the evictor of {config.evictor}"
    if policy.runtime is not None:
        parser = config.runtime.tool_parser
        parts.append(f"tool calls read by {parser}" if parser else "tool calls not read: give --tool-call-parser")
    if policy.name not in ("vllm", "lru"):
        parts.append(f"costs {describe_costs(vllm_config, config)}")
    if fills_gaps:
        parts.append("multi-segment reuse on")
    elif obstacle is not None:
        parts.append(f"prefix reuse only: {obstacle.text}")
    if steers_tier:
        parts.append(f"blocks in the CPU cache {describe_link(vllm_config, config)}")
    elif tier_obstacle is not None:
        parts.append(f"the CPU cache is vLLM's own tier, not steered: {tier_obstacle.text}")
    if config.record.file is not None:
        parts.append(f"requests recorded in {config.record.file}")
    url = os.environ.get(REPORT_URL_VARIABLE) if policy.runtime is not None else None
    # Last, and without a full stop: terminals make a link of it.
    return "; ".join(parts) + "." + (f" Live report: {url}" if url is not None else "")


def speaks_for_server(parallel_config: ParallelConfig) -> bool:
    """Tell whether this is the first of its server's engines, or the only one: one banner a server."""
    if parallel_config.data_parallel_external_lb:
        return True
    if parallel_config.data_parallel_hybrid_lb:
        return not parallel_config.data_parallel_rank_local
    return parallel_config.data_parallel_index == 0
