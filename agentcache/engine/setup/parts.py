"""Makes the parts that a policy brings to a scheduler, each from those before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from agentcache._evictor import Evictor
from agentcache.config import AgentCacheConfig, is_on
from agentcache.engine.blocks.block_queue import BlockQueue, replace_queue
from agentcache.engine.blocks.checkpoints import Checkpoints, has_checkpoints
from agentcache.engine.blocks.evictor_inputs import build_inputs, find_cost_obstacle
from agentcache.engine.blocks.frees import DescribedFrees, Frees, describe_unknown
from agentcache.engine.blocks.preemption import Preemption
from agentcache.engine.cached_blocks import HitFinder
from agentcache.engine.chunking import StepLimit
from agentcache.engine.cpu_cache.tier import Tier
from agentcache.engine.jobs.tracker import JobTracker
from agentcache.engine.observe.lru_comparison import make_comparison
from agentcache.engine.observe.misses import Ledger, MissLog
from agentcache.engine.observe.recorder import make_recorder
from agentcache.engine.order.fair_queue import FairQueue
from agentcache.engine.order.job_queue import JobQueue
from agentcache.engine.parts import Hooks, Observers
from agentcache.engine.policy_choice import speaks_for_server, write_banner
from agentcache.engine.replies.ended_reply import StopStrings, make_reader
from agentcache.engine.segments.gap_filler import GapFiller
from agentcache.engine.segments.obstacles import Reason, find_engine_obstacle, make_rule
from agentcache.engine.segments.scheduler import MultiSegmentScheduler
from agentcache.engine.setup.cpu_cache import find_tier
from agentcache.engine.setup.jobs import JobsBuild
from agentcache.engine.vllm.base import init_logger
from agentcache.engine.vllm.types import KVCacheBlock, SchedulingPolicy
from agentcache.policy.price import ReturnPrice
from agentcache.policy.registry import EvictorInputs, Policy
from agentcache.policy.reuse_plan import SegmentCosts
from agentcache.policy.runtime_policy import RuntimePolicy

logger = init_logger("vllm.agentcache")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a scheduler has of a policy. None: the policy, or this engine, is without it."""

    evictor: Evictor | None
    block_queue: BlockQueue | None
    tracker: JobTracker | None
    checkpoints: Checkpoints | None
    tier: Tier | None
    tier_obstacle: Reason | None
    frees: Frees
    step_limit: StepLimit
    stop_strings: StopStrings
    hooks: Hooks


@dataclass
class Build:
    """Builds for one scheduler. `policy` is in force; `clock` gives seconds.

    `note_evicted` is called with blocks that are evicted, before they lose their hashes.
    """

    scheduler: MultiSegmentScheduler
    config: AgentCacheConfig
    policy: Policy
    observers: Observers
    note_evicted: Callable[[Sequence[KVCacheBlock]], None]
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        """Find what this engine can do of what the policy wants."""
        scheduler, config, policy = self.scheduler, self.config, self.policy
        self._manager = scheduler.kv_cache_manager
        self._tier_setup, self._tier_obstacle = find_tier(scheduler, config)
        scheduler.steers_tier = self._tier_setup is not None
        has_segments = is_on(config.segments.enabled, policy.segments)
        self._obstacle = find_engine_obstacle(scheduler) if has_segments else None
        self._fills_gaps = has_segments and self._obstacle is None

    def make(self) -> Parts:
        """Make everything, and put in vLLM's place what stands there.

        Raises:
            InputError: A cost profile, a recording or a file of durations cannot be used.
        """
        jobs, evictor = self._jobs, self._make_evictor()
        if evictor is not None and jobs is not None:
            evictor = jobs.add_pins(evictor)
        queue = None if evictor is None else self._replace_queue(evictor)
        filler = self._make_filler()
        self._log()
        tier = None if queue is None or filler is None else self._make_tier(queue, filler)
        tracker = None if evictor is None or jobs is None else jobs.make(evictor)
        checkpoints = None if queue is None else self._make_checkpoints(queue, tracker)
        frees = Frees() if queue is None else self._make_frees(queue, checkpoints, tracker, tier)
        preemption = None if tracker is None else self._order_jobs(tracker)
        if filler is not None:
            self.scheduler.fill_gaps(filler)
        self._watch(queue, tracker, tier)
        tenants = None if tracker is None else tracker.tenants
        order = frees, checkpoints, filler, self.observers, tenants, tracker, preemption, tier
        return Parts(
            evictor=evictor,
            block_queue=queue,
            tracker=tracker,
            checkpoints=checkpoints,
            tier=tier,
            tier_obstacle=self._tier_obstacle,
            frees=frees,
            step_limit=self._limit_steps(),
            stop_strings=StopStrings(None if tracker is None else self.scheduler.vllm_config.model_config),
            hooks=Hooks(part for part in order if part is not None),
        )

    @cached_property
    def _inputs(self) -> EvictorInputs:
        """What evictor, segments and runtime ask for. Making it fits a cost model; raises InputError without one."""
        scheduler, num_blocks = self.scheduler, self._manager.block_pool.num_gpu_blocks
        return build_inputs(
            scheduler.vllm_config, self.config, num_blocks, scheduler.block_size, fills_gaps=self._fills_gaps
        )

    @cached_property
    def _price(self) -> ReturnPrice | None:
        """What a return costs where a CPU cache is steered."""
        return None if self._tier_setup is None else self._tier_setup.price_returns(self._inputs)

    @cached_property
    def _costs(self) -> SegmentCosts:
        """What segments cost, and fill requests."""
        return SegmentCosts(self._inputs.recompute_cost, self.config.tuning.row_s, self.scheduler.block_size)

    @property
    def _loses_whole(self) -> bool:
        return has_checkpoints(self.scheduler.kv_cache_config)

    @cached_property
    def _runtime(self) -> RuntimePolicy | None:
        """What the agent runtime does on this engine; None: there is none."""
        runtime = self.policy.runtime
        if runtime is not None and self._tier_setup is not None:
            runtime = runtime.beside_tier()
        if runtime is None or not self._loses_whole or self.policy.make_evictor is None:
            return runtime
        cache_s = self._inputs.num_blocks * self._inputs.recompute_cost.at(0)
        return runtime.keep_contexts_whole(cache_s, has_states=self.scheduler.has_mamba_layers)

    @cached_property
    def _jobs(self) -> JobsBuild | None:
        if self._runtime is None or self.policy.make_evictor is None:
            return None
        return JobsBuild(
            scheduler=self.scheduler,
            config=self.config,
            runtime_policy=self._runtime,
            inputs=self._inputs,
            clock=self.clock,
            price=self._price,
            loses_whole=self._loses_whole,
            observers=self.observers,
        )

    def _make_evictor(self) -> Evictor | None:
        """Make what chooses which blocks go from the GPU's cache; None leaves it to vLLM."""
        if self.policy.make_evictor is None:
            return None
        tier = self._tier_setup
        return self.policy.make_evictor(lambda: self._inputs if tier is None else tier.price_evictions(self._inputs))

    def _replace_queue(self, evictor: Evictor) -> BlockQueue:
        pool, notes_reuse = self._manager.block_pool, self._jobs is None
        return replace_queue(pool, evictor, self.clock, notes_reuse=notes_reuse, on_taken=self.note_evicted)

    def _make_filler(self) -> GapFiller | None:
        if not self._fills_gaps:
            if self._obstacle is not None:
                logger.warning("Cached blocks are reused as prefixes only: %s.", self._obstacle.text)
            return None
        scheduler = self.scheduler
        finder = HitFinder(self._manager.block_pool, make_rule(scheduler.kv_cache_config), scheduler.block_size)
        return GapFiller(
            self._manager,
            finder,
            self._costs,
            self.config.tuning.max_gaps,
            find_wait=scheduler.find_wait,
            awaits_blocks=scheduler.awaits_blocks,
        )

    def _log(self) -> None:
        config = self.scheduler.vllm_config
        banner = write_banner(
            config,
            self.config,
            self.policy,
            fills_gaps=self._fills_gaps,
            obstacle=self._obstacle,
            steers_tier=self._tier_setup is not None,
            tier_obstacle=self._tier_obstacle,
        )
        if speaks_for_server(config.parallel_config):
            logger.info(banner)

    def _make_tier(self, queue: BlockQueue, filler: GapFiller) -> Tier | None:
        """Make the CPU cache, and let it steer the connector."""
        setup, price, make_evictor = self._tier_setup, self._price, self.policy.make_evictor
        if setup is None or price is None or make_evictor is None:
            return None
        return setup.make(
            self.scheduler,
            queue=queue,
            filler=filler,
            evictor=make_evictor(lambda: setup.price_losses(self._inputs)),
            price=price,
            observers=self.observers,
            clock=self.clock,
        )

    def _make_checkpoints(self, queue: BlockQueue, tracker: JobTracker | None) -> Checkpoints | None:
        """Make what keeps them; None where every block's end is one, and for policies that evict by age."""
        if not self.policy.segments or not self._loses_whole or not self._manager.enable_caching:
            return None
        return Checkpoints(
            self._manager,
            queue,
            find_request=self.scheduler.requests.get,
            is_fill_request=self.scheduler.is_fill_request,
            begins_job=(lambda _: True) if tracker is None else tracker.begins_job,
            find_return=(lambda _: None) if tracker is None else tracker.find_return,
            fills_gaps=self._fills_gaps,
        )

    def _make_frees(
        self, queue: BlockQueue, checkpoints: Checkpoints | None, tracker: JobTracker | None, tier: Tier | None
    ) -> Frees:
        return DescribedFrees(
            self._manager,
            queue,
            checkpoints,
            describe=describe_unknown if tracker is None else tracker.on_free,
            note_use=None if tier is None else tier.storing.note_use,
            renew=(lambda context: context) if tracker is None else tracker.on_late_free,
            is_fill_request=self.scheduler.is_fill_request,
            fills_gaps=self._fills_gaps,
            fills_gaps_of=self.scheduler.fills_gaps_of,
            left=[] if tracker is None else tracker.finder.left,
            list_requests=self.scheduler.requests.values,
            note_left=None if tier is None else tier.storing.note_left,
        )

    def _order_jobs(self, tracker: JobTracker) -> Preemption | None:
        """Queue requests by their jobs where the policy does; None where vLLM's own order holds."""
        runtime = self._runtime
        if runtime is None or not is_on(self.config.order.enabled, runtime.order is not None):
            return None
        if self.scheduler.policy is not SchedulingPolicy.FCFS:
            logger.warning("Requests keep the order of --scheduling-policy %s.", self.scheduler.policy.value)
            return None
        order, tenants = (tracker.priority_of, tracker.waiting.patience_s, self.clock), tracker.tenants
        self.scheduler.waiting = JobQueue(*order) if tenants is None else FairQueue(*order, tenants.find)
        return Preemption(runtime.victim, lambda request: tracker.priority_of(request).time_s)

    def _watch(self, queue: BlockQueue | None, tracker: JobTracker | None, tier: Tier | None) -> None:
        """Add what only explains."""
        if tracker is not None:
            self.observers.watch("misses", self._make_misses(tracker, tier))
        # What a connector of vLLM's brings, it would bring under LRU as well, but not the same.
        can_compare = queue is not None and (self.scheduler.connector is None or tier is not None)
        if can_compare and find_cost_obstacle(self.scheduler.vllm_config) is None:
            comparison = make_comparison(self.scheduler, lambda: self._costs)
            if comparison is not None:
                self.observers.watch("lru_comparison", comparison)
        if self.config.record.file is not None:
            self._record(tracker)

    def _make_misses(self, tracker: JobTracker, tier: Tier | None) -> MissLog:
        """Make what explains misses, in both caches if there are two."""
        ledger = Ledger(self._inputs.num_blocks, self.clock) if tier is None else tier.storing.ledger
        return MissLog(self.scheduler.hash_block_size, ledger, self.clock, tracker.states, price=self._price)

    def _record(self, tracker: JobTracker | None) -> None:
        config = self.scheduler.vllm_config
        recorder = make_recorder(
            config,
            self.config,
            hash_block_size=self.scheduler.hash_block_size,
            tool_reader=make_reader(config, self.config.runtime) if tracker is None else tracker.tool_reader,
            reads_later=tracker is None,
            states={} if tracker is None else tracker.states,
            clock=self.clock,
        )
        self.observers.watch("recording", recorder)

    def _limit_steps(self) -> StepLimit:
        tuning = self.config.tuning if is_on(self.config.chunking.enabled, self.policy.chunking) else None
        return StepLimit(tuning, self.scheduler.max_num_scheduled_tokens, self.scheduler.limit_prefill)
