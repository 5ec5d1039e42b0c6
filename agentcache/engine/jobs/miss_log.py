"""Follows what is evicted and for whom, to tell of each turn why its prompt was not in the cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from agentcache.engine.jobs.evicted_blocks import EvictedBlocks, Eviction, FindLosses
from agentcache.engine.jobs.misses import explain_misses, find_missed, view_losses, view_placed_losses
from agentcache.engine.jobs.request_state import RequestState, reusable_hashes
from agentcache.engine.jobs.told_prompt import read_left
from agentcache.engine.vllm.types import KVCacheBlock, Request
from agentcache.policy.return_price import ReturnPrice


class MissLog:
    """`block_size` is that of a request's block hashes, `num_blocks` the cache's size; `clock` gives seconds.

    `name_session` names the session of a request that is in the engine, by its id; "" where it is no job's. `price`
    learns how many evicted blocks a request that was admitted computes again, where there is a second cache.
    """

    def __init__(
        self,
        block_size: int,
        num_blocks: int,
        clock: Callable[[], float],
        name_session: Callable[[str], str],
        price: ReturnPrice | None,
    ) -> None:
        self.asks = ""
        """The id of the client's request for which blocks are allocated."""
        self.find_losses: FindLosses | None = None
        """Finds how blocks were lost, where there is a second cache."""
        self._price = price
        self._block_size = block_size
        self._clock = clock
        self._name_session = name_session
        self._evicted: EvictedBlocks[Eviction] = EvictedBlocks.of_cache(num_blocks)

    def note_taken(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Note blocks that were chosen to be evicted and still have their hashes."""
        hashes = [block_hash for block in blocks if (block_hash := block.block_hash) is not None]
        if hashes:
            self._evicted.note(hashes, Eviction(self._clock(), self._name_session(self.asks)))

    def explain(self, request: Request, state: RequestState, filled: Collection[int]) -> None:
        """Tell of a request that was just admitted what it missed and why. It computes these blocks now.

        `filled` are its blocks, by index, that fill requests have computed for it.
        """
        missed_tokens = request.num_prompt_tokens - state.cached_tokens
        if missed_tokens <= 0:
            return
        size = self._block_size
        hashes = reusable_hashes(request, size)
        missed = find_missed(len(hashes), state.cached_tokens // size, filled)
        evicted = self._evicted.take(hashes, missed)
        if self._price is not None:
            self._price.note_lost(len(evicted))
        reads_cache = not request.skip_reading_prefix_cache
        forgotten = self._evicted.forgotten
        state.misses = explain_misses(
            missed,
            missed_tokens,
            evicted,
            state.overlap,
            size,
            left_tokens=read_left(request),
            reads_cache=reads_cache,
            all_remembered=forgotten is None or forgotten.time_s < state.left_s,
        )
        if not reads_cache:
            return
        if self.find_losses is None:
            state.lost_to = view_losses(evicted, self._clock(), size)
            return
        losses = self.find_losses(hashes, evicted)
        causes = Counter(loss.cause for loss in losses.values())
        state.evicted_from = {cause: blocks * size for cause, blocks in causes.items()}
        state.lost_to = view_placed_losses(evicted, losses, self._clock(), size)

    def reset(self) -> None:
        """Forget what was evicted: the cache was emptied."""
        self._evicted.clear()

    def end(self) -> None:
        """Forget what was evicted: nothing is told from now on."""
        self._evicted.clear()
        if self._price is not None:
            self._price.settle()
