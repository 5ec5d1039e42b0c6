"""Evicts for `belady-cost`, which knows the future: it shows what is left to gain, and cannot serve.

Knowledge: which requests contain a block, for certain; when the next request of each job comes, for certain as soon as
the reply before it is complete; when later ones come, by an estimate (`future_uses.py`).

With prefix hits a block is worth nothing without the blocks before it, and a request that uses a block uses those, too.
The block whose next use is furthest goes first; of the blocks that the same request uses next, the last of its prompt.
So what is kept of a chain is always its beginning: nothing is kept in vain. For requests that come in a given order,
one at a time, no policy computes fewer blocks: this is Belady's MIN, which the prefix rule does not hinder. It counts
blocks and not their costs. Costs by position do not mix with it: the dear end of a chain must go before its beginning.

With hits behind gaps (`segments`) every block stands for itself. First go the blocks that no request will use, then
those with the least cost(position) / (next use − now): what keeping them saves for each second that they take up space.

It is a yardstick, and no proven bound once jobs run side by side. It decides greedily: the least cost with hits behind
gaps would be a minimal cost flow over the whole run, and that only if the requests came at fixed times. They do not:
each waits for the reply before it, so that other evictions bring other requests. Running requests hold their blocks
whatever the policy thinks, and no request is made to wait for them. So another rule may come out ahead at times, in
hits as well; `docs/belady-cost.md` says by how much we saw one do so.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, takewhile

import numpy as np
from future_uses import NO_PATTERN, FutureJob, FutureUses, hash_prompts
from numpy.typing import NDArray

from agentcache._evictor import UNKNOWN_REQUEST, FreeContext, PythonEvictor
from agentcache.config_reader import read_config
from agentcache.engine.blocks.block_queue import replace_queue
from agentcache.engine.blocks.evictor_inputs import build_inputs
from agentcache.engine.blocks.frees import DescribedFrees
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.vllm.types import get_block_hash
from agentcache.errors import IntegrityError
from agentcache.jobs.families import take_agent
from agentcache.jobs.recorded_job import PromptWriter, RecordedJob
from agentcache.policy.price import RecomputeCost
from agentcache.policy.step_cost import Row, StepCost
from agentcache.sim.engine import SimulatedEngine

# A request that is due already waits in the engine: its blocks are worth more than any others.
_SOONEST_S = 1e-3


class BeladyEvictor(PythonEvictor):
    """`hash_of` gives the hash of a block that is added, None if it has none. O(free blocks) per call of `evict`."""

    def __init__(
        self,
        *,
        num_blocks: int,
        recompute_cost: RecomputeCost,
        future: FutureUses,
        hash_of: Callable[[int], bytes | None],
        segments: bool,
    ) -> None:
        super().__init__()
        self._recompute_cost = recompute_cost
        self._future = future
        self._hash_of = hash_of
        self._segments = segments
        self._empty: OrderedDict[int, None] = OrderedDict()
        # By block: 1 if it is free with KV. NumPy looks at the same bytes, which Python changes faster one by one.
        self._flags = bytearray(num_blocks)
        self._is_free = np.frombuffer(self._flags, np.uint8)
        self._free = 0
        self._added = 0
        self._patterns = np.full(num_blocks, NO_PATTERN)
        self._positions = np.zeros(num_blocks, np.int64)
        self._costs_s = np.zeros(num_blocks)
        self._factors = np.ones(num_blocks)
        self._numbers = np.zeros(num_blocks, np.int64)

    def add(
        self,
        block_ids: Sequence[int],
        positions: Sequence[int],
        now_s: float,  # noqa: ARG002 (the past does not count here)
        context: FreeContext = UNKNOWN_REQUEST,
    ) -> None:
        """Free blocks with reusable KV."""
        if not block_ids:
            return
        ids = np.array(block_ids)
        hashes = map(self._hash_of, block_ids)
        self._patterns[ids] = [NO_PATTERN if key is None else self._future.pattern_of(key) for key in hashes]
        self._positions[ids] = positions
        self._costs_s[ids] = self._find_costs(self._positions[ids])
        self._factors[ids] = context.factor
        self._numbers[ids] = np.arange(self._added, self._added + len(ids))
        self._is_free[ids] = 1
        self._added += len(ids)
        self._free += len(ids)

    def add_empty(self, block_ids: Sequence[int]) -> None:
        """Free blocks without reusable KV: they go first, the latest call in front."""
        for block_id in reversed(block_ids):
            self._empty[block_id] = None
            self._empty.move_to_end(block_id, last=False)

    def evict(self, count: int, now_s: float) -> list[int]:
        """Take out the `count` blocks to lose. Raises ValueError if fewer are free."""
        if count > len(self):
            raise ValueError(f"cannot evict {count} blocks: {len(self)} are free")
        empty = [self._empty.popitem(last=False)[0] for _ in range(min(count, len(self._empty)))]
        if len(empty) == count:
            return empty
        victims = self._choose(count - len(empty), now_s)
        self._is_free[victims] = 0
        self._free -= len(victims)
        return [*empty, *victims.tolist()]

    def remove(self, block_id: int) -> None:
        """Take out one block because its KV is used again."""
        if 0 <= block_id < len(self._flags) and self._flags[block_id]:
            self._flags[block_id] = 0
            self._free -= 1
        else:
            del self._empty[block_id]

    def reprice(self, block_ids: Sequence[int], cost_s: float) -> None:
        """Set what the loss of blocks costs until they are freed anew. With prefix hits costs do not count."""
        self._costs_s[list(block_ids)] = cost_s

    def order(self, now_s: float) -> list[int]:
        """List the free blocks, the next victim first."""
        return [*self._empty, *self._choose(self._free, now_s).tolist()]

    def __len__(self) -> int:
        """Return how many blocks are free."""
        return len(self._empty) + self._free

    def check_integrity(self) -> None:
        """Raise IntegrityError when the flags and the count of free blocks disagree."""
        if self._flags.count(1) != self._free or any(self._flags[block_id] for block_id in self._empty):
            raise IntegrityError(f"{self._free} free blocks with KV: their flags say {self._flags.count(1)}")

    def _choose(self, count: int, now_s: float) -> NDArray[np.int64]:
        """Choose the first `count` of the blocks with KV."""
        ids = np.flatnonzero(self._is_free)
        scores = self._score(ids, now_s)
        if count < len(ids):
            # Only blocks up to the score of the last victim are worth sorting.
            close = scores <= np.partition(scores, count - 1)[count - 1]
            ids, scores = ids[close], scores[close]
        numbers, positions = self._numbers[ids], self._positions[ids]
        keys = (numbers, scores) if self._segments else (numbers, -positions, scores)
        first: NDArray[np.int64] = ids[np.lexsort(keys)[:count]]
        return first

    def _score(self, ids: NDArray[np.int64], now_s: float) -> NDArray[np.float64]:
        """Score the blocks; the lowest goes first."""
        next_use_s, factors = self._future.next_use_s()[self._patterns[ids]], self._factors[ids]
        scores: NDArray[np.float64] = -next_use_s / factors
        if self._segments:
            scores = self._costs_s[ids] * factors / np.maximum(next_use_s - now_s, _SOONEST_S)
        return scores

    def _find_costs(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        linear_s = self._recompute_cost.slope_s * positions + self._recompute_cost.base_s
        costs_s: NDArray[np.float64] = np.maximum(linear_s, self._recompute_cost.floor_s)
        return costs_s


def evict_by_future(
    scheduler: AgentScheduler, future: FutureUses, clock: Callable[[], float], *, segments: bool
) -> None:
    """Give a scheduler that has seen no request a block queue of this policy. `segments`: its hits may have gaps."""
    pool = scheduler.kv_cache_manager.block_pool
    config = read_config(scheduler.vllm_config.additional_config)
    inputs = build_inputs(scheduler.vllm_config, config, pool.num_gpu_blocks, scheduler.block_size, fills_gaps=segments)

    def hash_of(block_id: int) -> bytes | None:
        key = pool.blocks[block_id].block_hash
        return None if key is None else get_block_hash(key)

    evictor = BeladyEvictor(
        num_blocks=inputs.num_blocks,
        recompute_cost=inputs.recompute_cost,
        future=future,
        hash_of=hash_of,
        segments=segments,
    )
    frees = scheduler.frees
    assert isinstance(frees, DescribedFrees)
    scheduler.block_queue = frees.queue = replace_queue(pool, evictor, clock)


def make_clairvoyant(
    engine: SimulatedEngine, jobs: Sequence[RecordedJob], prompts: PromptWriter, gpu: StepCost
) -> FutureUses:
    """Let the engine, which has seen no request, evict by the future of these jobs; the runner must tell it on."""
    agents = [take_agent(recorded, each) for recorded in jobs for each in recorded.job.family]
    future = FutureUses([_foresee(recorded, engine, prompts, gpu) for recorded in agents])
    scheduler = engine.scheduler
    evict_by_future(scheduler, future, engine.clock.now, segments=scheduler.gap_filler is not None)
    return future


def _foresee(recorded: RecordedJob, engine: SimulatedEngine, prompts: PromptWriter, gpu: StepCost) -> FutureJob:
    hashes = list(hash_prompts(prompts.write(recorded), engine.block_size, engine.hash_block))
    return FutureJob(recorded.job.name, hashes, list(_estimate_gaps(recorded, hashes, engine.block_size, gpu)))


def _estimate_gaps(
    recorded: RecordedJob, prompts: Sequence[Sequence[bytes]], block_size: int, gpu: StepCost
) -> Iterator[float]:
    """Estimate the seconds from each request to the next if it were alone and hit all that the one before it left."""
    for number, (before, prompt) in enumerate(pairwise([[], *prompts[:-1]])):
        turn = recorded.job.turns[number]
        hit = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, prompt, strict=False)))
        tokens, computed = len(prompt) * block_size, max(1, (len(prompt) - hit) * block_size)
        prefill_s = gpu.step_s([Row(computed, tokens - computed)])
        decode_s = (len(recorded.reply(number)) - 1) * gpu.step_s([Row(1, tokens)])
        yield prefill_s + decode_s + max((result.duration_s for result in turn.results), default=0.0) + turn.pause_s
