"""Puts a placer into vLLM's data-parallel client, which then asks it instead of its own balancer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from multiprocessing import current_process
from typing import Any

from agentcache.config import AgentCacheConfig, is_on
from agentcache.config_reader import read_config
from agentcache.engine.blocks.evictor_inputs import find_cost_model
from agentcache.engine.constants import RELEASE_METHOD
from agentcache.engine.cpu_cache.link import find_speeds
from agentcache.engine.vllm.base import VllmConfig, init_logger
from agentcache.engine.vllm.engine import AsyncMPClient, DPLBAsyncMPClient, core_client
from agentcache.engine.vllm.patches import replace
from agentcache.engine.vllm.types import EngineCoreOutputs, EngineCoreRequest
from agentcache.errors import InputError, ServerError, in_one_line
from agentcache.front_end.offloading import count_host_tokens
from agentcache.front_end.placement_process import JobPlaces, Meeting
from agentcache.front_end.placer import Placer
from agentcache.front_end.shared_placement import START_WAIT_S, PlacementProcess, Rejoining, SharedPlacement
from agentcache.front_end.token_bytes import count_token_bytes
from agentcache.policy.registry import find_policy
from agentcache.policy.replicas.engine_load import HostMemory, PrefillCost
from agentcache.policy.replicas.placement import SpillRule

logger = init_logger("vllm.agentcache")


class PlacingClient(DPLBAsyncMPClient):
    """vLLM's data-parallel client, which asks its placer for the engine of each request once it has one."""

    placer: Placer | None = None

    def get_core_engine_for_request(self, request: EngineCoreRequest) -> bytes:
        """Choose the request's engine."""
        if self.placer is not None and request.request_id not in self.reqs_in_flight:
            rank = self.placer.choose(request)
            request.data_parallel_rank = request.data_parallel_rank if rank is None else rank
        return super().get_core_engine_for_request(request)

    @staticmethod
    async def process_engine_outputs(self: DPLBAsyncMPClient, outputs: EngineCoreOutputs) -> None:  # noqa: PLW0211
        """Note the outputs of a step, of a client that vLLM gives."""
        if isinstance(self, PlacingClient) and self.placer is not None:
            self.placer.note(outputs)
        await DPLBAsyncMPClient.process_engine_outputs(self, outputs)


def keeps_jobs_home(config: AgentCacheConfig) -> bool:
    """Tell whether jobs stay at their engines: where the knob leaves it open, with policies that follow jobs."""
    return is_on(config.replicas.enabled, find_policy(config.policy).runtime is not None)


def make_placing_clients() -> None:
    """Have vLLM make data-parallel clients that can get a placer. Safe to call more than once."""
    replace(core_client, "DPLBAsyncMPClient", PlacingClient)


def shares_engines(core: object) -> bool:
    """Tell whether other API servers send to the same engines."""
    return isinstance(core, AsyncMPClient) and core.client_count > 1


def place_requests(core: object, vllm_config: VllmConfig) -> Placer | None:
    """Give the client a new placer if it sends to several engines and the policy follows jobs; else vLLM balances.

    To be called again when the engines go on with another policy.
    """
    if not isinstance(core, PlacingClient):
        return None
    core.placer = _make_placer(core, vllm_config, read_config(vllm_config.additional_config))
    return core.placer


def _make_placer(core: PlacingClient, vllm_config: VllmConfig, config: AgentCacheConfig) -> Placer | None:
    if not keeps_jobs_home(config):
        return None
    try:
        make = _plan_placement(vllm_config, config, len(core.engine_ranks_managed))
        placement = _share_placement(core, make, vllm_config) if shares_engines(core) else make()
    except InputError as error:
        logger.warning("agentcache: vLLM's balancer chooses engines, because costs are unknown: %s", error)
        return None
    return Placer(placement, _make_release(core))


def _plan_placement(vllm_config: VllmConfig, config: AgentCacheConfig, engines: int) -> Callable[[], JobPlaces]:
    cache_config = vllm_config.cache_config
    block_size = cache_config.block_size
    # vLLM has added up the blocks of all engines.
    blocks = (cache_config.num_gpu_blocks or 0) // engines
    if blocks < 2:
        raise InputError("the engines did not tell how many blocks their caches have")
    return partial(
        JobPlaces,
        engines,
        capacity_tokens=blocks * block_size,
        prefill_cost=PrefillCost(find_cost_model(vllm_config, config).recompute_cost(block_size), block_size),
        spill=SpillRule(factor=config.replicas.spill_factor),
        host=_find_host_memory(vllm_config, config),
        max_jobs=config.tuning.max_jobs,
    )


def _find_host_memory(vllm_config: VllmConfig, config: AgentCacheConfig) -> HostMemory:
    """Find what --kv-offloading-size gives each engine. Raises InputError for a profile that cannot be used."""
    if not (tokens := count_host_tokens(vllm_config)):
        return HostMemory()
    # Each GPU of an engine loads its part, all at once.
    token_bytes = count_token_bytes(vllm_config) / vllm_config.parallel_config.world_size
    return HostMemory(tokens, token_bytes / (find_speeds(vllm_config, config).fetch.gb_s * 1e9))


def _share_placement(core: PlacingClient, make: Callable[[], JobPlaces], vllm_config: VllmConfig) -> SharedPlacement:
    """Connect to the placement of all API servers, which the first of them starts."""
    # All of them, and no other server of this host, have the coordinator's address and the key.
    digest = sha256(str(core.stats_update_address).encode()).hexdigest()
    meeting = Meeting(f"\0agentcache-{digest[:32]}", bytes(current_process().authkey))
    process = PlacementProcess(meeting, make if core.client_index == 0 else None)
    try:
        connection = process.join(START_WAIT_S)
    except ServerError:
        connection = None
    return SharedPlacement(connection, vllm_config.cache_config.block_size, Rejoining(process.join))


def _make_release(core: PlacingClient) -> Callable[[int, str, str | None], None]:
    # A task without a reference may be garbage-collected before it is done.
    releases: set[asyncio.Task[Any]] = set()

    def release(engine: int, session: str, tenant: str | None) -> None:
        call = core.call_utility_all_async(RELEASE_METHOD, session, [tenant], core.engine_ranks_managed[engine])
        task = asyncio.get_running_loop().create_task(_log_failure(call))
        releases.add(task)
        task.add_done_callback(releases.discard)

    return release


async def _log_failure(call: Any) -> None:
    try:
        await call
    except Exception as error:
        # The job's pins there expire by themselves.
        logger.warning("agentcache: a job that has moved was not released at its old engine: %s", in_one_line(error))
