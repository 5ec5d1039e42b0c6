"""How the CPU cache is put together for an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from agentcache._evictor import Evictor
from agentcache.config import AgentCacheConfig
from agentcache.engine.blocks.block_queue import BlockQueue
from agentcache.engine.parts import Observers
from agentcache.engine.segments.cached_blocks import KV_CACHE_GROUP, watched_map_of
from agentcache.engine.segments.gap_filler import GapFiller
from agentcache.engine.segments.obstacles import Reason
from agentcache.engine.segments.plan import SegmentCosts
from agentcache.engine.segments.scheduler import MultiSegmentScheduler
from agentcache.engine.tier.computed_blocks import ComputedBlocks, find_filled
from agentcache.engine.tier.connector import SteeredConnector
from agentcache.engine.tier.fetch_plan import Link
from agentcache.engine.tier.fetching import Fetching
from agentcache.engine.tier.fresh_blocks import FreshBlocks
from agentcache.engine.tier.host_cache import HostCache
from agentcache.engine.tier.link_costs import find_block_bytes, find_links
from agentcache.engine.tier.obstacles import TierObstacle, find_tier_obstacle
from agentcache.engine.tier.options import is_left_to_vllm, is_steered, names_ours
from agentcache.engine.tier.storing import Storing
from agentcache.engine.tier.tier import Tier
from agentcache.engine.tier.usefulness import Usefulness
from agentcache.engine.vllm.base import cdiv
from agentcache.engine.vllm.connector import CopyingConnector
from agentcache.engine.vllm.types import Scheduler
from agentcache.policy.cost import RecomputeCost
from agentcache.policy.inputs import EvictorInputs
from agentcache.policy.return_price import ReturnPrice

# Steps whose new tokens take blocks that are copied already: a copy is known to have been made some three steps after
# it was asked for, and until it is needed both caches have the block. Of 2, 4 and 8, simulated on closed loops
# (docs/results/host-memory-choices.md#fewer-copies-ahead).
_STEPS_AHEAD = 4
# Steps whose new tokens take as many victims as are copied beside one
# (docs/results/host-memory-choices.md#bounded-copies).
_STEPS_AT_ONCE = 2
# Copies are made beside the steps: a second of the link counts for so much of one of the GPU's. Where all of it counts,
# caches that lose most of what they copy give up classes to which all jobs come back, and lose the rest too. Of 0.2 and
# 1, simulated on six sets of coding sessions (docs/results/host-memory-choices.md#copies-of-what-the-gpu-has).
_LINK_PRICE = 0.2


@dataclass(frozen=True, slots=True)
class TierSetup:
    """The size of a CPU cache that can be steered, in blocks, and what a copy to the GPU costs."""

    host_blocks: int
    link: Link

    def price_evictions(self, inputs: EvictorInputs) -> EvictorInputs:
        """Return the inputs of the GPU's evictor: each block costs what computing a request's first one does.

        Stored ones are repriced. With a dearer end each job would keep its end on the GPU, and every return be a fetch.
        """
        cost = inputs.recompute_cost
        return replace(inputs, recompute_cost=RecomputeCost(slope_s=0.0, base_s=cost.at(0), floor_s=cost.floor_s))

    def price_returns(self, inputs: EvictorInputs) -> ReturnPrice:
        """Return what a runtime weighs: fetching what a job left, or computing what the CPU cache loses of it."""
        ratio = self.host_blocks / inputs.num_blocks
        return ReturnPrice(inputs.recompute_cost, self.link.block_s, size_ratio=ratio)

    def price_losses(self, inputs: EvictorInputs) -> EvictorInputs:
        """Return the inputs of the evictor of the CPU cache: what it loses is computed."""
        return replace(inputs, num_blocks=self.host_blocks)

    def make(
        self,
        scheduler: MultiSegmentScheduler,
        *,
        queue: BlockQueue,
        filler: GapFiller,
        evictor: Evictor,
        price: ReturnPrice,
        observers: Observers,
        clock: Callable[[], float],
    ) -> Tier:
        """Make the tier, and a connector that it steers. `evictor` is that of the CPU cache."""
        usefulness = Usefulness(_LINK_PRICE * self.link.block_s / filler.costs.block_s(0))
        host = HostCache(self.host_blocks, scheduler.hash_block_size, evictor, clock, is_useful=usefulness.is_useful)
        storing = self._make_storing(scheduler, queue, host, usefulness, filler.costs, observers=observers, clock=clock)
        tier = Tier(
            host=host,
            storing=storing,
            fetching=self._make_fetching(scheduler, queue, host, filler, storing),
            filler=filler,
            price=price,
            block_size=scheduler.block_size,
            block_bytes=int(find_block_bytes(scheduler)) * scheduler.parallel_config.world_size,
            workers=scheduler.parallel_config.world_size,
            find_filled=lambda step: find_filled(scheduler, step),
            note_wait=scheduler.note_wait,
            observers=observers,
            clock=clock,
        )
        scheduler.connector = SteeredConnector(scheduler.vllm_config, scheduler.kv_cache_config, tier)
        return tier

    def _make_storing(
        self,
        scheduler: Scheduler,
        queue: BlockQueue,
        host: HostCache,
        usefulness: Usefulness,
        costs: SegmentCosts,
        *,
        observers: Observers,
        clock: Callable[[], float],
    ) -> Storing:
        manager = scheduler.kv_cache_manager
        computed = ComputedBlocks(
            lambda: scheduler.running,
            lambda name: manager.get_blocks(name).blocks[KV_CACHE_GROUP],
            scheduler.block_size,
        )
        return Storing(
            manager.block_pool,
            queue,
            host,
            usefulness,
            FreshBlocks(host, computed, lambda: watched_map_of(manager.block_pool)),
            margin=_STEPS_AHEAD * _blocks_of_step(scheduler),
            most=_STEPS_AT_ONCE * _blocks_of_step(scheduler),
            fetch_s=self.link.block_s,
            compute_s=costs.recompute_cost.at(0),
            observers=observers,
            clock=clock,
        )

    def _make_fetching(
        self, scheduler: Scheduler, queue: BlockQueue, host: HostCache, filler: GapFiller, storing: Storing
    ) -> Fetching:
        return Fetching(
            pool=scheduler.kv_cache_manager.block_pool,
            queue=queue,
            host=host,
            filler=filler,
            storing=storing,
            usefulness=storing.usefulness,
            costs=filler.costs,
            link=self.link,
            count_running=lambda: len(scheduler.running),
        )


def _blocks_of_step(scheduler: Scheduler) -> int:
    return cdiv(scheduler.max_num_scheduled_tokens, scheduler.block_size)


def find_tier(scheduler: MultiSegmentScheduler, config: AgentCacheConfig) -> tuple[TierSetup | None, Reason | None]:
    """Find what the policy in force needs to steer the CPU cache, or why vLLM's own way must do.

    Returns:
        Neither where it is not to be steered: without such a connector, by `tier.enabled`, or under other policies.

    Raises:
        InputError: A cost profile cannot be used.
    """
    vllm_config, connector = scheduler.vllm_config, scheduler.connector
    if not is_steered(config):
        return None, None
    if is_left_to_vllm(vllm_config):
        return None, TierObstacle.LAYER_KINDS
    if isinstance(connector, CopyingConnector):
        return TierSetup(connector.host_blocks, find_links(scheduler, config).fetch), None
    is_ours = names_ours(vllm_config)
    return None, find_tier_obstacle(vllm_config, scheduler.kv_cache_config, config) if is_ours else None
