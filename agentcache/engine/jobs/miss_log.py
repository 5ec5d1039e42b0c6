"""Follows what is evicted and for whom, to tell of each turn why its prompt was not in the cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from agentcache.engine.jobs.evicted_blocks import EvictedBlocks, Eviction, FindLosses
from agentcache.engine.jobs.misses import explain_misses, find_missed, view_losses, view_placed_losses
from agentcache.engine.jobs.request_state import RequestState, reusable_hashes
from agentcache.engine.jobs.told_prompt import read_left
from agentcache.engine.parts import Part
from agentcache.engine.vllm.types import KVCacheBlock, Request
from agentcache.policy.return_price import ReturnPrice


class MissLog(Part):
    """`block_size` is that of a request's block hashes, `num_blocks` the cache's size; `clock` gives seconds.

    `find_state` finds the state of a job's request that is in the engine, `name_session` names its session by its id;
    "" where it is no job's. Where there is a CPU cache, `price` learns how many evicted blocks a request that was
    admitted computes again, and `find_losses` finds why neither cache has them.
    """

    def __init__(
        self,
        block_size: int,
        num_blocks: int,
        clock: Callable[[], float],
        find_state: Callable[[Request], RequestState | None],
        name_session: Callable[[str], str],
        *,
        price: ReturnPrice | None = None,
        find_losses: FindLosses | None = None,
    ) -> None:
        self._price = price
        self._find_losses = find_losses
        self._find_state = find_state
        self._block_size = block_size
        self._clock = clock
        self._name_session = name_session
        self._evicted: EvictedBlocks[Eviction] = EvictedBlocks.of_cache(num_blocks)

    def evicted(self, blocks: Sequence[KVCacheBlock], request_id: str) -> None:
        """Note blocks that are evicted for the client's request of this id, and still have their hashes."""
        hashes = [block_hash for block in blocks if (block_hash := block.block_hash) is not None]
        if hashes:
            self._evicted.note(hashes, Eviction(self._clock(), self._name_session(request_id)))

    def admitted(self, request: Request, hit_tokens: int, filled: Collection[int]) -> None:  # noqa: ARG002
        """Tell of a job's request that runs for the first time what it missed and why. It computes these blocks now.

        `filled` are its blocks, by index, that fill requests have computed for it.
        """
        state = self._find_state(request)
        if state is None or state.scheduled_s is not None:
            return
        cached_tokens = request.prefill_stats.num_cached_tokens if request.prefill_stats is not None else 0
        if cached_tokens < request.num_prompt_tokens:
            self._explain(request, state, filled, cached_tokens)

    def _explain(self, request: Request, state: RequestState, filled: Collection[int], cached_tokens: int) -> None:
        size = self._block_size
        hashes = reusable_hashes(request, size)
        missed = find_missed(len(hashes), cached_tokens // size, filled)
        evicted = self._evicted.take(hashes, missed)
        if self._price is not None:
            self._price.note_lost(len(evicted))
        reads_cache = not request.skip_reading_prefix_cache
        forgotten = self._evicted.forgotten
        state.misses = explain_misses(
            missed,
            request.num_prompt_tokens - cached_tokens,
            evicted,
            state.overlap,
            size,
            left_tokens=read_left(request),
            reads_cache=reads_cache,
            all_remembered=forgotten is None or forgotten.time_s < state.left_s,
        )
        if not reads_cache:
            return
        if self._find_losses is None:
            state.lost_to = view_losses(evicted, self._clock(), size)
            return
        losses = self._find_losses(hashes, evicted)
        causes = Counter(loss.cause for loss in losses.values())
        state.evicted_from = {cause: blocks * size for cause, blocks in causes.items()}
        state.lost_to = view_placed_losses(evicted, losses, self._clock(), size)

    def reset(self) -> None:
        """Forget what was evicted: the cache was emptied."""
        self._evicted.clear()

    def abandon(self) -> None:
        """Forget what was evicted: nothing is told from now on."""
        self._evicted.clear()
        if self._price is not None:
            self._price.settle()
