"""How the agent runtime is put together for an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from vllm.config import VllmConfig
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

from agentcache.config import AgentCacheConfig, is_on
from agentcache.engine.durations_keeper import DurationsKeeper
from agentcache.engine.factors import Factors
from agentcache.engine.job_tracker import JobTracker
from agentcache.engine.pins import Pins
from agentcache.engine.rebuild_cost import RebuildCost
from agentcache.engine.tool_reader import ToolReader
from agentcache.engine.waiting import Waiting
from agentcache.policy.compiled import CompiledEvictor
from agentcache.policy.evictor import Evictor
from agentcache.policy.inputs import EvictorInputs
from agentcache.policy.pinned import PinnedEvictor
from agentcache.policy.steering import Order, Steering
from tool_runtime.runtime import AgentRuntime
from tool_runtime.ttl import ContinuumCode, ContinuumPaper, HazardTtl, TtlEstimator


def is_of_a_job(request: Request) -> bool:
    """Whether it generates text in one go: embeddings and live streams of input are nobody's turns."""
    return request.pooling_params is None and not request.resumable


@dataclass(frozen=True, slots=True)
class TrackerSetup:
    """`clock` gives seconds. `hash_block_size` is that of a request's block hashes, None where it is `block_size`."""

    vllm_config: VllmConfig
    config: AgentCacheConfig
    steering: Steering
    inputs: EvictorInputs
    block_size: int
    find_hits: Callable[[Request], list[KVCacheBlock]]
    count_requests: Callable[[], tuple[int, int]]
    clock: Callable[[], float]
    hash_block_size: int | None = None

    def make(self, evictor: Evictor) -> tuple[Evictor, JobTracker]:
        """The evictor to use in place of the given one, which knows pins if the policy has any, and the tracker."""
        config, inputs, steering = self.config, self.inputs, self._steering()
        pins = None
        if is_on(config.pins.enabled, steering.ttl != "none" or steering.protect_waiting) and isinstance(
            evictor, CompiledEvictor
        ):
            # A pin under pressure keeps a prefix, unless gaps can be filled.
            evictor = PinnedEvictor(evictor, num_blocks=inputs.num_blocks, cheapest_first=inputs.fills_gaps)
            pins = self._make_pins(evictor)
        runtime = AgentRuntime(
            clock=self.clock,
            estimator=self._make_estimator(steering),
            max_jobs=config.runtime.max_jobs,
            max_idle_s=config.runtime.max_idle_s,
        )
        parser = config.runtime.tool_parser
        tracker = JobTracker(
            steering=steering,
            runtime=runtime,
            pins=pins,
            waiting=Waiting(
                steering,
                pins,
                block_size=self.block_size,
                loss=inputs.loss,
                find_hits=self.find_hits,
                count_running=lambda: self.count_requests()[0],
            ),
            factors=self._make_factors(evictor, runtime) if steering.factors else None,
            rebuild_cost=RebuildCost(inputs.loss, self.block_size, inputs.num_blocks),
            hash_block_size=self.block_size if self.hash_block_size is None else self.hash_block_size,
            tool_reader=ToolReader(self.vllm_config, parser) if parser is not None else None,
            count_waiting=lambda: self.count_requests()[1],
            keeper=self._make_keeper(runtime),
            clock=self.clock,
        )
        return evictor, tracker

    def _steering(self) -> Steering:
        """The policy's, with what the knobs say."""
        steering, order = self.steering, self.config.order
        if self.config.pins.enabled and steering.ttl == "none":
            steering = replace(steering, ttl="hazard")
        if is_on(order.enabled, steering.order is not None):
            by_policy = steering.order or Order()
            seniority_s = by_policy.seniority_s if order.seniority_s is None else order.seniority_s
            patience_s = by_policy.patience_s if order.patience_s is None else order.patience_s
            return replace(steering, order=replace(by_policy, seniority_s=seniority_s, patience_s=patience_s))
        return replace(steering, order=None)

    def _make_pins(self, evictor: PinnedEvictor) -> Pins:
        budget_blocks = int(self.config.pins.budget * self.inputs.num_blocks)
        return Pins(
            evictor,
            budget_blocks=budget_blocks,
            tenant_blocks=int(self.config.pins.tenant_budget * budget_blocks),
            clock=self.clock,
        )

    def _make_factors(self, evictor: Evictor, runtime: AgentRuntime) -> Factors:
        return Factors(
            evictor,
            runtime,
            lifespan_window=self.inputs.lifespan_window,
            reuse_probability=self.config.reuse_probability,
        )

    def _make_keeper(self, runtime: AgentRuntime) -> DurationsKeeper | None:
        given = self.config.runtime.durations_file
        if given is None:
            return None
        path, rank = Path(given), self.vllm_config.parallel_config.data_parallel_index
        # Engines side by side learn apart.
        path = path.with_name(f"{path.name}.{rank}") if rank else path
        return DurationsKeeper(path, runtime.durations, self.clock)

    def _make_estimator(self, steering: Steering) -> TtlEstimator | None:
        match steering.ttl:
            case "released":
                return ContinuumCode()
            case "published":
                return ContinuumPaper()
            case "hazard":
                return HazardTtl(max_ttl_s=self.config.pins.max_ttl_s, min_chance=self.config.pins.min_chance)
            case "none":
                return None
