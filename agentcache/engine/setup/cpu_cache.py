"""Makes the CPU cache's parts for an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from agentcache._evictor import Evictor
from agentcache.config import AgentCacheConfig
from agentcache.engine.blocks.block_queue import BlockQueue
from agentcache.engine.cpu_cache.connector import SteeredConnector, TierObstacle, find_tier_obstacle
from agentcache.engine.cpu_cache.fetching import Fetching
from agentcache.engine.cpu_cache.link import find_block_bytes, find_speeds
from agentcache.engine.cpu_cache.options import is_left_to_vllm, is_steered, names_ours
from agentcache.engine.cpu_cache.storing import Storing
from agentcache.engine.cpu_cache.tier import Tier
from agentcache.engine.parts import Observers
from agentcache.engine.segments.gap_filler import GapFiller
from agentcache.engine.segments.obstacles import Reason
from agentcache.engine.segments.scheduler import MultiSegmentScheduler
from agentcache.engine.views import TierCounts
from agentcache.engine.vllm.connector import CopyingConnector
from agentcache.policy.link_profile import Link
from agentcache.policy.price import RecomputeCost, ReturnPrice, Usefulness
from agentcache.policy.registry import EvictorInputs

# Copies are made beside the steps: a second of the link counts for so much of one of the GPU's. Where all of it counts,
# caches that lose most of what they copy give up classes to which all jobs come back, and lose the rest too. Of 0.2 and
# 1, simulated on six sets of coding sessions.
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
        block_bytes = int(find_block_bytes(scheduler)) * scheduler.parallel_config.world_size
        counts = TierCounts(total=self.host_blocks, block_bytes=block_bytes)
        storing = Storing(
            scheduler,
            queue,
            evictor,
            usefulness,
            counts,
            finder=filler.finder,
            fetch_s=self.link.block_s,
            compute_s=filler.costs.recompute_cost.at(0),
            observers=observers,
            clock=clock,
        )
        fetching = Fetching(scheduler, queue, filler=filler, storing=storing, link=self.link)
        tier = Tier(scheduler, storing=storing, fetching=fetching, filler=filler, price=price)
        scheduler.connector = SteeredConnector(scheduler.vllm_config, scheduler.kv_cache_config, tier)
        return tier


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
        speed = find_speeds(vllm_config, config).fetch
        return TierSetup(connector.host_blocks, speed.of_blocks(find_block_bytes(scheduler))), None
    is_ours = names_ours(vllm_config)
    return None, find_tier_obstacle(vllm_config, scheduler.kv_cache_config, config) if is_ours else None
