"""`belady-cost` with a second cache in the host's memory: the tier that serves, by someone who knows what comes.

Copies, their account and their delays are the tier's own (`agentcache.engine.tier`). Three of its judgements come from
the future: which block the GPU loses, which the host's memory loses, and which is worth a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from vllm.v1.core.kv_cache_utils import KVCacheBlock, get_block_hash
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import Request

from agentcache._evictor import FreeContext
from agentcache.config_reader import CONFIG_KEY, read_config
from agentcache.engine.blocks.block_queue import replace_queue
from agentcache.engine.layer_groups import make_layer_groups
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.segments.layer_rule import has_full_attention_alone
from agentcache.engine.setup import PolicySetup
from agentcache.engine.tier.setup import find_margin
from agentcache.engine.tier.usefulness import Usefulness
from agentcache.errors import InputError
from agentcache.policy.registry import Policy, find_policy
from agentcache.policy.runtime_policy import Order, TierOrders
from agentcache.run.checks import CLAIRVOYANT
from agentcache.sim.belady import BeladyEvictor
from agentcache.sim.engine_shape import EngineShape, make_config
from agentcache.sim.future import FutureUses

# A policy that steers the host's memory: the connector is made for it. What else it would do, the scheduler leaves out.
STEERED_AS = "agentcache"


def check_foreseen_tier(shape: EngineShape) -> None:
    """Raise InputError for a model with which no tier can be steered."""
    groups = make_layer_groups(make_config(shape, STEERED_AS))
    if not has_full_attention_alone(KVCacheConfig(0, [], groups)):
        raise InputError(
            f"--cpu-tokens {shape.host_tokens}: {CLAIRVOYANT} takes it with models whose layers all keep all tokens; "
            "leave it out, or give another --policy"
        )


def foresee_shape(shape: EngineShape) -> EngineShape:
    """Return the shape with the knobs that a ForeseeingScheduler needs."""
    knobs = read_config({CONFIG_KEY: shape.knobs})
    # Off or by the policy is the same here, which hits prefixes alone; the tier needs what fills gaps all the same.
    segments = knobs.segments.model_copy(update={"enabled": knobs.segments.enabled or None})
    tier = knobs.tier.model_copy(update={"enabled": True})
    return replace(shape, knobs={**shape.knobs, "segments": segments.model_dump(), "tier": tier.model_dump()})


class ForeseeingScheduler(AgentScheduler):
    """Has what a tier needs, and no runtime: requests come in their order, and nothing is pinned."""

    _setup: PolicySetup | None = None

    def _find_policy(self) -> Policy:
        # Fetched blocks are held for their request as those of filled gaps are.
        return replace(find_policy("lru"), segments=True, tier_orders=TierOrders(Order(), Order()))

    def _steer_tier(self, setup: PolicySetup) -> None:
        self._setup = setup

    def find_context(self, request: Request, blocks: list[KVCacheBlock]) -> FreeContext:
        """Find the context, and have what the request computed looked at for the host's memory."""
        context = super().find_context(request, blocks)
        if self.tier is not None:
            self.tier.storing.note_use(blocks, context)
        return context

    def foresee(self, future: FutureUses) -> None:
        """Evict, store and keep by this future from now on, before the first request."""
        assert self._setup is not None
        setup, inputs, price = self._setup.tier, self._setup.inputs, self._setup.price
        assert setup is not None
        assert price is not None
        assert self.gap_filler is not None
        segments = self.config.segments.enabled is True
        if not segments:
            # Prefixes alone are hit; the filler holds what is fetched.
            self.gap_filler.max_gaps = 0
        # What the GPU loses can be fetched, from its beginning on: every block stands for itself.
        on_gpu = BeladyEvictor(
            num_blocks=inputs.num_blocks,
            recompute_cost=setup.price_evictions(inputs).recompute_cost,
            future=future,
            hash_of=self._hash_on_gpu,
            segments=True,
        )
        on_host = BeladyEvictor(
            num_blocks=setup.connector.host_blocks,
            recompute_cost=inputs.recompute_cost,
            future=future,
            hash_of=self._hash_on_host,
            segments=segments,
        )
        queue = self.block_queue = replace_queue(self.kv_cache_manager.block_pool, on_gpu, self.now)
        self.tier = setup.make(
            self,
            queue=queue,
            filler=self.gap_filler,
            evictor=on_host,
            price=price,
            misses=None,
            observers=self.observers,
            clock=self.now,
            usefulness=ForeseenUse(future, on_host, self._list_candidates, self.now),
        )
        queue.on_taken = self.tier.storing.note_taken
        self.tier.host.count_needless = on_host.count_unused

    def _hash_on_gpu(self, block_id: int) -> bytes | None:
        key = self.kv_cache_manager.block_pool.blocks[block_id].block_hash
        return None if key is None else get_block_hash(key)

    def _hash_on_host(self, block_id: int) -> bytes | None:
        assert self.tier is not None
        key = self.tier.host.key_of(block_id)
        return None if key is None else get_block_hash(key)

    def _list_candidates(self) -> list[KVCacheBlock]:
        """List the blocks that the GPU loses next and the host's memory does not have."""
        assert self.tier is not None
        assert self.block_queue is not None
        holds = self.tier.host.map.holds
        victims = self.block_queue.list_victims(find_margin(self))
        return [block for block in victims if (key := block.block_hash) is not None and not holds(key)]


class ForeseenUse(Usefulness):
    """A copy is worth it if the block is used again, and sooner than what the host's memory would lose for it."""

    def __init__(
        self,
        future: FutureUses,
        on_host: BeladyEvictor,
        list_candidates: Callable[[], list[KVCacheBlock]],
        clock: Callable[[], float],
    ) -> None:
        """Take the host's evictor, and what lists the blocks for which its memory is wanted."""
        super().__init__(least_share=0.0)
        self._future = future
        self._on_host = on_host
        self._list_candidates = list_candidates
        self._clock = clock
        # The score that a copy must be above, and when that was found.
        self._least = -np.inf
        self._found_s: float | None = None

    def is_useful(self, finish_class: int) -> bool:  # noqa: ARG002 (blocks are known one by one)
        """Tell that what is stored was worth it."""
        return True

    def is_worth(self, block: KVCacheBlock, finish_class: int) -> bool:  # noqa: ARG002 (as above)
        """Tell whether this block of the GPU is worth a copy."""
        key = block.block_hash
        if key is None:
            return False
        uses_s = self._future.later_use_s() if block.ref_cnt else self._future.next_use_s()
        if uses_s[self._future.pattern_of(get_block_hash(key))] == np.inf:
            return False
        now_s = self._clock()
        if self._found_s != now_s:
            self._least, self._found_s = self._find_least(now_s), now_s
        return bool(self._score([block], now_s)[0] > self._least)

    def _find_least(self, now_s: float) -> float:
        """Find the score above which the host's memory has room for all, of what is there and what may come."""
        candidates = self._score(self._list_candidates(), now_s)
        if not len(candidates):
            return -np.inf
        both = np.append(self._on_host.scores(now_s), candidates)
        return float(np.partition(both, len(candidates) - 1)[len(candidates) - 1])

    def _score(self, blocks: list[KVCacheBlock], now_s: float) -> NDArray[np.float64]:
        hashes = [get_block_hash(key) for block in blocks if (key := block.block_hash) is not None]
        return self._on_host.score(hashes, [block.block_hash_num_tokens or 0 for block in blocks], now_s)
