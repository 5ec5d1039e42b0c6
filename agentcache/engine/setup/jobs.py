"""Makes what follows jobs on an engine: pins, the agent runtime, admission and the tracker."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

from agentcache._evictor import Evictor, PinnedEvictor
from agentcache.config import AgentCacheConfig, is_on
from agentcache.engine.blocks.pins import Pins
from agentcache.engine.jobs.duration_files import find_file, open_store
from agentcache.engine.jobs.finish_classes import FinishClasses, ReuseFactors
from agentcache.engine.jobs.tracker import JobTracker
from agentcache.engine.observe.recorder import begin_recording
from agentcache.engine.observe.stats import JobStats
from agentcache.engine.order.admission import AdmissionControl
from agentcache.engine.order.load_control import LoadControl
from agentcache.engine.order.tenants import TenantShares
from agentcache.engine.parts import Observers
from agentcache.engine.replies.ended_reply import make_reader
from agentcache.engine.request_state import RequestState
from agentcache.engine.segments.scheduler import MultiSegmentScheduler
from agentcache.job_log import JobLog, JobNames
from agentcache.models.catalog import short_name
from agentcache.policy.price import BlockPrice, Demand, RequestCost, ReturnPrice, TurnCost
from agentcache.policy.registry import EvictorInputs
from agentcache.policy.runtime_policy import Order, RuntimePolicy
from tool_runtime.learning.continuum import ContinuumCode, ContinuumPaper
from tool_runtime.learning.duration_store import DurationStore
from tool_runtime.learning.runtime import AgentRuntime
from tool_runtime.learning.ttl import HazardTtl, TtlEstimator

if TYPE_CHECKING:
    from agentcache.job_spans import JobSpans

# What jobs want is counted up to so many times what the caches hold: more changes nothing.
_ROOMS = 4


@dataclass
class JobsBuild:
    """Builds for one scheduler. `clock` gives seconds.

    `price` is that of evicted blocks where they may be kept in the CPU cache; None: they must be computed.
    `loses_whole`: some layers keep only parts, so that without its last block a context is lost as a whole.
    """

    scheduler: MultiSegmentScheduler
    config: AgentCacheConfig
    runtime_policy: RuntimePolicy
    inputs: EvictorInputs
    clock: Callable[[], float]
    loses_whole: bool = False
    price: ReturnPrice | None = None
    observers: Observers = field(default_factory=Observers)
    _pins: Pins | None = field(default=None, init=False)

    def add_pins(self, evictor: Evictor) -> Evictor:
        """Return the evictor to use in place of the given one: it knows pins if the policy has any."""
        if not is_on(self.config.pins.enabled, self._policy.ttl != "none" or self._policy.protect_waiting):
            return evictor
        # A pin under pressure keeps a prefix, unless gaps can be filled.
        pinned = PinnedEvictor(evictor, num_blocks=self.inputs.num_blocks, cheapest_first=self.inputs.fills_gaps)
        self._pins = self._make_pins(pinned)
        return pinned

    def make(self, evictor: Evictor) -> JobTracker:
        """Make the tracker. `evictor` is the one in use."""
        config, scheduler, runtime_policy = self.config, self.scheduler, self._policy
        runtime = AgentRuntime(
            clock=self.clock,
            estimator=self._make_estimator(runtime_policy),
            max_jobs=config.tuning.max_jobs,
            max_idle_s=config.runtime.max_idle_s,
            max_blocks=int(_ROOMS * self._room / scheduler.hash_block_size),
        )
        states: dict[str, RequestState] = {}
        tenants = self._make_tenants(states, runtime)
        demand = Demand(runtime, scheduler.hash_block_size, self._room)
        return JobTracker(
            runtime_policy=runtime_policy,
            runtime=runtime,
            pins=self._pins,
            waiting=self._make_admission(demand, runtime, tenants),
            factors=self._make_factors(evictor, runtime) if runtime_policy.factors else None,
            finish_classes=FinishClasses(self.inputs.waits, runtime.durations),
            turn_cost=self._make_turn_cost(self._price),
            hash_block_size=scheduler.hash_block_size,
            tool_reader=make_reader(scheduler.vllm_config, config.runtime),
            count_waiting=scheduler.count_waiting,
            store=self._make_store(runtime),
            shows_text=config.runtime.show_text,
            connector=scheduler.connector,
            observers=self.observers,
            clock=self.clock,
            stats=self._make_stats(),
            states=states,
            tenants=tenants,
        )

    def _make_tenants(self, states: Mapping[str, RequestState], runtime: AgentRuntime) -> TenantShares | None:
        """Make what shares the engine among tenants; None where the operator gives no shares."""
        tenants = self.config.tenants
        if tenants is None:
            return None
        return TenantShares(
            tenants=tenants,
            cost=RequestCost(self._make_turn_cost(self.inputs.recompute_cost), self.inputs.step_s),
            pins=self._pins,
            states=states,
            find_job=runtime.jobs.get,
            list_running=lambda: self.scheduler.running,
            clock=self.clock,
        )

    def _make_stats(self) -> JobStats:
        config, given = self.scheduler.vllm_config, self.config.runtime.job_log
        endpoint = config.observability_config.otlp_traces_endpoint
        rank, gpus = config.parallel_config.data_parallel_index, config.parallel_config.world_size
        cost = RequestCost(self._make_turn_cost(self.inputs.recompute_cost), self.inputs.step_s)
        if given is None and endpoint is None:
            return JobStats(cost.of_turn, gpus)
        names = JobNames(given, begin_recording(config).key)
        log = None if given is None else JobLog(given, rank, names)
        return JobStats(cost.of_turn, gpus, log, None if endpoint is None else self._make_spans(endpoint, names, rank))

    def _make_spans(self, endpoint: str, names: JobNames, rank: int) -> JobSpans:
        from agentcache.job_spans import JobSpans, make_exporter

        model = short_name(str(self.scheduler.vllm_config.model_config.served_model_name))
        since_1970_s = time.time() - self.clock()
        return JobSpans(make_exporter(endpoint), names, model=model, rank=rank, since_1970_s=since_1970_s)

    def _make_admission(self, demand: Demand, runtime: AgentRuntime, tenants: TenantShares | None) -> AdmissionControl:
        computing = self._make_turn_cost(self.inputs.recompute_cost)
        order = self._policy.order or Order()
        return AdmissionControl(
            self._policy,
            self._pins,
            num_blocks=self.inputs.num_blocks,
            block_size=self.scheduler.block_size,
            price_taken=self._price.at,
            find_work=RequestCost(computing, self.inputs.step_s).find,
            count_running=self.scheduler.count_running,
            find_turns=runtime.jobs.turn_counts.quantile,
            find_growth=lambda: runtime.context_growth.ratio,
            load_control=LoadControl(
                order.recompute_share,
                order.longest_wait_s,
                demand=demand,
                find_hits=self.scheduler.find_hits,
                count_elsewhere=self.scheduler.count_elsewhere,
                find_seconds=computing.of_rest,
                block_size=self.scheduler.block_size,
                loses_whole=self.loses_whole,
            ),
            tenants=tenants,
        )

    def _make_turn_cost(self, price: BlockPrice) -> TurnCost:
        return TurnCost(price, self.scheduler.block_size, self.inputs.num_blocks)

    @property
    def _price(self) -> BlockPrice:
        return self.price or self.inputs.recompute_cost

    @property
    def _room(self) -> float:
        """The tokens that the caches hold together."""
        beside = 0.0 if self.price is None else self.price.size_ratio
        return self.inputs.num_blocks * self.scheduler.block_size * (1 + beside)

    @cached_property
    def _policy(self) -> RuntimePolicy:
        """Return the policy's settings with what the knobs say."""
        runtime_policy, order = self.runtime_policy, self.config.order
        if self.config.pins.enabled and runtime_policy.ttl == "none":
            runtime_policy = replace(runtime_policy, ttl="hazard")
        if is_on(order.enabled, runtime_policy.order is not None):
            names = {each.name for each in fields(Order)}
            given = order.model_dump(include=names, exclude_none=True)
            given |= self.config.tuning.model_dump(include=names, exclude_none=True)
            return replace(runtime_policy, order=replace(runtime_policy.order or Order(), **given))
        return replace(runtime_policy, order=None)

    def _make_pins(self, evictor: PinnedEvictor) -> Pins:
        return Pins(
            evictor,
            budget_blocks=int(self.config.pins.budget * self.inputs.num_blocks),
            clock=self.clock,
            # Unless gaps can be filled.
            whole=self.loses_whole and not self.inputs.fills_gaps,
        )

    def _make_factors(self, evictor: Evictor, runtime: AgentRuntime) -> ReuseFactors:
        return ReuseFactors(evictor, runtime, self.inputs.lifespan, self.config.tuning.reuse_probability)

    def _make_store(self, runtime: AgentRuntime) -> DurationStore | None:
        given = self.config.runtime.durations_file
        if given is None:
            return None
        path = find_file(given, self.scheduler.vllm_config.parallel_config.data_parallel_index)
        return open_store(path, runtime.durations, self.clock)

    def _make_estimator(self, runtime_policy: RuntimePolicy) -> TtlEstimator | None:
        match runtime_policy.ttl:
            case "released":
                return ContinuumCode()
            case "published":
                return ContinuumPaper()
            case "hazard":
                return HazardTtl(max_ttl_s=self.config.tuning.max_ttl_s, min_chance=self.config.tuning.min_chance)
            case "none":
                return None
