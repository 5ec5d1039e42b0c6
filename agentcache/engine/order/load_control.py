"""Delays turns whose context was evicted while the jobs under way want more KV than the caches hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentcache.engine.jobs.request_state import RequestState
from agentcache.engine.vllm.types import KVCacheBlock, Request
from agentcache.policy.load_control import has_lost_context

# A turn that waits is looked at again after so many seconds, and then whenever it has waited twice as long.
_LOOK_S = 1.0


class LoadControl:
    """Looks at each request when it comes, and at those that wait a few times more: others may compute what they lost.

    A turn waits only while it would take blocks of pins: else its wait would spare no job anything.
    """

    def __init__(
        self,
        find_longest_wait: Callable[[], float],
        find_hits: Callable[[Request], Sequence[KVCacheBlock]],
        count_elsewhere: Callable[[Request], int],
        block_size: int,
        *,
        loses_whole: bool,
    ) -> None:
        """`find_longest_wait` gives the seconds for which a turn without its context waits at most, as of now.

        `find_hits` gives the blocks on the GPU that a request would reuse; `count_elsewhere` counts those that the CPU
        cache alone has. With `loses_whole` layers keep only parts, and a prompt is reused up to the last of its cached
        blocks.
        """
        self.held_turns = 0
        """Counts the turns that have waited."""
        self._find_longest_wait = find_longest_wait
        self._find_hits = find_hits
        self._count_elsewhere = count_elsewhere
        self._block_size = block_size
        self._loses_whole = loses_whole
        self._longest_s = 0.0

    def step(self) -> None:
        """Note that a step is scheduled next: jobs have come, grown and gone."""
        self._longest_s = self._find_longest_wait()

    def look(self, request: Request, state: RequestState, now_s: float) -> Sequence[KVCacheBlock]:
        """Look what the request would reuse on the GPU, and whether it has lost its context. Return those blocks."""
        hits = self._find_hits(request)
        state.kept_blocks = len(hits)
        # Each group of layers has a block for the same tokens.
        state.used_blocks = len({block.block_hash_num_tokens for block in hits if block.ref_cnt > 0})
        left = state.overlap.shared_tokens
        if left:
            state.lost_context = has_lost_context(request.num_tokens, left, self._count_kept(request, hits))
        state.look_again_s = now_s + max(_LOOK_S, now_s - state.turn.arrived_s)
        return hits

    def holds(self, request: Request, state: RequestState, now_s: float) -> bool:
        """Tell whether the request, which would take blocks of pins, waits in this step and lets others pass."""
        if self.may_hold(state, now_s) and now_s >= state.look_again_s:
            self.look(request, state, now_s)
        holds = self.may_hold(state, now_s)
        if holds and not state.was_held:
            state.was_held = True
            self.held_turns += 1
        return holds

    def may_hold(self, state: RequestState, now_s: float) -> bool:
        """Tell whether the request waits in this step if it would take blocks of pins."""
        return state.lost_context and now_s - state.turn.arrived_s < self._longest_s

    def _count_kept(self, request: Request, hits: Sequence[KVCacheBlock]) -> int:
        """Count the tokens of the request that are in either cache. Each group of layers has a block for them."""
        ends = {block.block_hash_num_tokens or 0 for block in hits}
        if self._loses_whole:
            return max(ends, default=0)
        return (len(ends) + self._count_elsewhere(request)) * self._block_size
