"""One running engine takes one policy after another: starting an engine takes longer than many a benchmark.

The engine core gets a new scheduler, so nothing of the last policy has to be undone. The workers stay as they are: an
idle engine has told them of every request that finished, and the new scheduler knows no block of their KV cache. A KV
connector numbers its copies with its workers, so an engine that has one is started anew for each policy.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

from agentcache.config import AgentCacheConfig
from agentcache.config_reader import CONFIG_KEY, read_config
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.vllm.base import freeze_gc_heap
from agentcache.engine.vllm.engine import EngineCore
from agentcache.errors import InputError

# The method of the engine core that takes the next policy: the fields of its AgentCacheConfig.
USE_POLICY_METHOD = "agentcache_use_policy"


def use_policy(core: EngineCore, config: AgentCacheConfig) -> bool:
    """Go on as an engine that just started with `config` would: nothing is cached, learned or counted.

    Return False, changing nothing, while steps are under way that a finished request left behind.

    Raises InputError, changing nothing, when a client waits for a reply, or the engine cannot change its scheduler, or
    the policy cannot work on it.
    """
    old = _check_core(core)
    if core.scheduler.has_requests() or core.batch_queue:
        return False
    if old.tracker is not None:
        # The successor may go on from the file in which the last policy keeps what it learns.
        old.tracker.close()
    new = _make_successor(old, core, config)
    new.set_pause_state(old.pause_state)
    core.scheduler = new
    # The new scheduler knows of nothing in the workers' cache of encoder outputs.
    core.reset_encoder_cache()
    old.shutdown()
    del old
    _collect_and_freeze()
    return True


def _collect_and_freeze() -> None:
    """As vLLM does after the start: else the collector would walk through a later policy's blocks, not the first."""
    gc.unfreeze()
    freeze_gc_heap()


def read_and_use(core: EngineCore, config: Mapping[str, Any]) -> bool:
    """Read the fields of a configuration, and go on with it if the engine is idle: return whether it was."""
    return use_policy(core, read_config({CONFIG_KEY: config}))


def _check_core(core: EngineCore) -> AgentScheduler:
    """Return the core's scheduler. Raises InputError for what stands in the way, except steps under way."""
    scheduler = core.scheduler
    if not isinstance(scheduler, AgentScheduler):
        raise InputError(f"the engine cannot change its policy: its scheduler is {type(scheduler).__name__}")
    obstacles = {
        "a KV connector is in use": scheduler.connector is not None,
        "an encoder cache connector is in use": scheduler.ec_connector is not None,
        "auxiliary outputs are on": scheduler.aux_output_connector is not None,
        "its KV cache events are published": scheduler.enable_kv_cache_events,
        "there are unfinished requests": not all(map(scheduler.is_fill_request, scheduler.requests)),
    }
    for obstacle, holds in obstacles.items():
        if holds:
            raise InputError(f"the engine cannot change its policy: {obstacle}")
    return scheduler


def _make_successor(old: AgentScheduler, core: EngineCore, config: AgentCacheConfig) -> AgentScheduler:
    """Make a scheduler of the same class, as the engine core makes one at its start."""
    vllm_config = core.vllm_config
    given: Any = vllm_config.additional_config
    vllm_config.additional_config = {**given, CONFIG_KEY: config.model_dump()}
    try:
        return type(old)(
            vllm_config=vllm_config,
            kv_cache_config=old.kv_cache_config,
            structured_output_manager=core.structured_output_manager,
            include_finished_set=old.finished_req_ids_dict is not None,
            log_stats=core.log_stats,
            block_size=old.block_size,
            hash_block_size=old.hash_block_size,
        )
    except BaseException:
        vllm_config.additional_config = given
        raise
