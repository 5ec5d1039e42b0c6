"""Which policy is in force: the one that is asked for, unless the model's costs are not known."""

from __future__ import annotations

from agentcache.config import AgentCacheConfig
from agentcache.engine.vllm.base import init_logger
from agentcache.engine.vllm.config import VllmConfig
from agentcache.errors import InputError
from agentcache.models.geometry import read_geometry
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


def find_cost_obstacle(vllm_config: VllmConfig) -> str | None:
    """Say why the cost of the model's blocks cannot be known, as the beginning of a sentence; None if it can."""
    try:
        read_geometry(vllm_config.model_config.hf_text_config)
    except InputError as error:
        sentence = str(error)
        return sentence[0].upper() + sentence[1:]
    return None
