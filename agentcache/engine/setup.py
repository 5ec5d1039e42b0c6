"""How the parts that a policy brings are put together for a scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from agentcache._evictor import Evictor
from agentcache.config import AgentCacheConfig
from agentcache.engine.blocks.block_queue import BlockQueue
from agentcache.engine.blocks.checkpoints import Checkpoints, has_checkpoints
from agentcache.engine.blocks.evictor_inputs import build_inputs
from agentcache.engine.jobs.miss_log import MissLog
from agentcache.engine.jobs.setup import TrackerSetup
from agentcache.engine.jobs.tracker import JobTracker
from agentcache.engine.observers import Observers
from agentcache.engine.segments.plan import SegmentCosts
from agentcache.engine.segments.scheduler import MultiSegmentScheduler
from agentcache.engine.tier.setup import TierSetup
from agentcache.engine.tier.tier import Tier
from agentcache.policy.inputs import EvictorInputs
from agentcache.policy.registry import Policy
from agentcache.policy.return_price import ReturnPrice
from agentcache.policy.runtime_policy import RuntimePolicy


@dataclass(frozen=True)
class PolicySetup:
    """Makes the parts of `policy`, which is in force, for `scheduler`.

    `tier` is the second cache if the policy steers one. `fills_gaps`: cached blocks are reused behind gaps. `clock`
    gives seconds.
    """

    scheduler: MultiSegmentScheduler
    config: AgentCacheConfig
    policy: Policy
    tier: TierSetup | None
    fills_gaps: bool
    observers: Observers
    clock: Callable[[], float]

    @cached_property
    def inputs(self) -> EvictorInputs:
        """What evictor, segments and runtime ask for. Making it fits a cost model; raises InputError without one."""
        config, num_blocks = self.scheduler.vllm_config, self.scheduler.kv_cache_manager.block_pool.num_gpu_blocks
        return build_inputs(config, self.config, num_blocks, self.scheduler.block_size, fills_gaps=self.fills_gaps)

    @cached_property
    def price(self) -> ReturnPrice | None:
        """What a return costs where a tier is steered."""
        return None if self.tier is None else self.tier.price_returns(self.inputs)

    @cached_property
    def costs(self) -> SegmentCosts:
        """What segments cost, and fill requests."""
        return SegmentCosts(self.inputs.recompute_cost, self.config.tuning.row_s, self.scheduler.block_size)

    @property
    def _loses_whole(self) -> bool:
        return has_checkpoints(self.scheduler.kv_cache_config)

    @cached_property
    def runtime(self) -> RuntimePolicy | None:
        """What the agent runtime does on this engine; None: there is none."""
        runtime = self.policy.find_runtime(steers_tier=self.tier is not None)
        if runtime is None or not self._loses_whole:
            return runtime
        cache_s = self.inputs.num_blocks * self.inputs.recompute_cost.at(0)
        return runtime.keep_contexts_whole(cache_s, has_states=self.scheduler.has_mamba_layers)

    def make_evictor(self) -> Evictor | None:
        """Make what chooses which blocks go from the GPU's cache; None leaves it to vLLM."""
        if self.policy.make_evictor is None:
            return None
        tier = self.tier
        return self.policy.make_evictor(lambda: self.inputs if tier is None else tier.price_evictions(self.inputs))

    def make_tracker(self, evictor: Evictor, runtime: RuntimePolicy) -> tuple[Evictor, JobTracker]:
        """Make what follows jobs, and the evictor to use in place of the given one."""
        scheduler = self.scheduler
        setup = TrackerSetup(
            vllm_config=scheduler.vllm_config,
            config=self.config,
            runtime_policy=runtime,
            inputs=self.inputs,
            block_size=scheduler.block_size,
            hash_block_size=scheduler.hash_block_size,
            find_hits=scheduler.find_hits,
            count_elsewhere=scheduler.count_elsewhere,
            count_requests=scheduler.get_request_counts,
            clock=self.clock,
            price=self.price,
            loses_whole=self._loses_whole,
            connector=scheduler.connector,
            observers=self.observers,
        )
        return setup.make(evictor)

    def make_misses(self, tracker: JobTracker, tier: Tier | None) -> MissLog:
        """Make what explains misses, in both caches if there are two."""
        return MissLog(
            self.scheduler.hash_block_size,
            self.inputs.num_blocks,
            self.clock,
            tracker.find_state,
            tracker.name_session,
            price=self.price,
            find_losses=None if tier is None else tier.storing.find_losses,
        )

    def make_checkpoints(self, queue: BlockQueue) -> Checkpoints | None:
        """Make what keeps them; None where every block's end is one, and for policies that evict by age."""
        scheduler = self.scheduler
        if not self.policy.segments or not self._loses_whole or not scheduler.kv_cache_manager.enable_caching:
            return None
        return Checkpoints(
            scheduler.kv_cache_manager,
            queue,
            find_request=scheduler.requests.get,
            is_fill_request=scheduler.is_fill_request,
            fills_gaps=self.fills_gaps,
        )

    def make_tier(self, queue: BlockQueue) -> Tier:
        """Make the second cache, and let it steer the connector. Gaps are filled by now."""
        setup, price, filler = self.tier, self.price, self.scheduler.gap_filler
        assert setup is not None
        assert price is not None
        assert filler is not None
        assert self.policy.make_evictor is not None
        return setup.make(
            self.scheduler,
            queue=queue,
            filler=filler,
            evictor=self.policy.make_evictor(lambda: setup.price_losses(self.inputs)),
            price=price,
            observers=self.observers,
            clock=self.clock,
        )
