"""Prices copies between the CPU cache and the GPU: by the user's knobs, else a profile, else the GPU's data sheet."""

from __future__ import annotations

from agentcache.config import AgentCacheConfig
from agentcache.engine.blocks.evictor_inputs import find_gpu, find_profile
from agentcache.engine.vllm.base import VllmConfig
from agentcache.engine.vllm.types import Scheduler
from agentcache.policy.gpus import GPUS
from agentcache.policy.link_profile import LinkSpeeds, assume_link


def find_block_bytes(scheduler: Scheduler) -> float:
    """Find how large a block is on each GPU: all its layers lie in one allocation there."""
    cache = scheduler.kv_cache_config
    return cache.kv_cache_tensors[0].size / cache.num_blocks


def find_speeds(vllm_config: VllmConfig, config: AgentCacheConfig) -> LinkSpeeds:
    """Find the speeds. Raises InputError for a cost profile that cannot be used.

    A knob goes for both directions; the share that both keep is never a knob.
    """
    profile = find_profile(vllm_config, config)
    measured = None if profile is None else profile.link
    speeds = assume_link(GPUS[find_gpu(config)].pcie_s) if measured is None else measured.speeds
    return speeds.override(config.tuning.link_latency_s, config.tier.link_gb_s)


def describe_link(vllm_config: VllmConfig, config: AgentCacheConfig) -> str:
    """Say how fast blocks come back, and who says so."""
    fetch = find_speeds(vllm_config, config).fetch
    knobs = config.tier.link_gb_s, config.tuning.link_latency_s
    profile = find_profile(vllm_config, config)
    origin = "assumed" if profile is None or profile.link is None else "measured"
    if None not in knobs:
        origin = "as set"
    elif any(knob is not None for knob in knobs):
        origin = f"as set, the other {origin}"
    return f"fetched at {fetch.gb_s:.3g} GB/s after {1e3 * fetch.latency_s:.2g} ms ({origin})"
