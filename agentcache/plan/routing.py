"""Which engine gets a request, where several share the recording."""

from __future__ import annotations

from agentcache.config_reader import CONFIG_KEY, read_config
from agentcache.engine.replicas.client import keeps_jobs_home
from agentcache.plan.settings import PlanSettings
from agentcache.sim.settings import DEFAULT_ROUTING, VLLM_ROUTING


def choose_routing(settings: PlanSettings, policy: str) -> str:
    """Return the routing that the user names, else the one that a server with this policy has."""
    if settings.routing is not None:
        return settings.routing
    config = read_config({CONFIG_KEY: {**settings.knobs, "policy": policy}})
    return DEFAULT_ROUTING if keeps_jobs_home(config) else VLLM_ROUTING
