"""Spaces turns that compute their contexts, and keeps new jobs out, while jobs want more KV than the caches hold.

Each takes the room of other jobs, which then compute theirs again. Without a limit all do so, for ever (thrashing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentcache.engine.marks import may_call_tools
from agentcache.engine.request_state import RequestState
from agentcache.engine.vllm.types import KVCacheBlock, Request
from agentcache.policy.price import Demand

# A turn that finds less of its prompt in the caches computes its context. Chosen of 0.5, 0.8 and 0.9 on seed 0.
_KEPT_SHARE = 0.8
# A turn is looked at again after so many seconds, and then whenever it has waited twice as long.
_LOOK_S = 1.0


class LoadControl:
    """Lets a turn that finds too little of its prompt compute it once the turn before it has paid.

    Such turns go one at a time, in the order of the queue, each as long after the one before as that one's prompt took
    to compute, divided by `share`: so computing contexts again takes at most that share of the engine's time. A turn
    waits for at most what the contexts ahead of it take to compute, divided by `share`, for `longest_wait_s` at most,
    and no longer than anything runs. Free blocks make no difference: a job whose tool runs wants them, pinned or not.

    A job begins once there is room for it beside those under way (`Demand.count_places`), or has waited for as long:
    what it takes they would compute again, and end later.
    """

    def __init__(
        self,
        share: float,
        longest_wait_s: float,
        *,
        demand: Demand,
        find_hits: Callable[[Request], Sequence[KVCacheBlock]],
        count_elsewhere: Callable[[Request], int],
        find_seconds: Callable[[int, int], float],
        block_size: int,
        loses_whole: bool,
    ) -> None:
        """With `share` 0 nothing waits, and turns wait only while jobs want more than there is room for.

        `find_hits` gives the blocks on the GPU that a request would reuse; `count_elsewhere` counts those that the CPU
        cache alone has. `find_seconds` gives the seconds that a prompt of so many tokens takes to compute of which so
        many are cached. With `loses_whole` layers keep only parts, and a prompt is reused up to the last of its cached
        blocks.
        """
        self.held_turns = 0
        """Counts the turns that have waited."""
        self.demand = demand
        self._share = share
        self._longest_wait_s = longest_wait_s
        self._find_hits = find_hits
        self._count_elsewhere = count_elsewhere
        self._find_seconds = find_seconds
        self._block_size = block_size
        self._loses_whole = loses_whole
        self._limits = False
        # By request, the jobs whose first turn runs.
        self._begun: dict[str, int] = {}
        # In this step these and those that may begin, and for how many there is room; None until somebody asks.
        self._begins: set[int] = set()
        self._places: float | None = None
        # The next may go from then on; in this step, this one.
        self._next_s = 0.0
        self._next: str | None = None

    def step(self) -> None:
        """Note that a step is scheduled next: jobs have come, grown and gone."""
        self._limits = self._share > 0 and self.demand.exceeds_room()
        self._next = None
        self._places = None

    def look(self, request: Request, state: RequestState, now_s: float) -> Sequence[KVCacheBlock]:
        """Look what the request would reuse in either cache. Return those blocks that are on the GPU."""
        hits = self._find_hits(request)
        state.kept_blocks = len(hits)
        # Each group of layers has a block for the same tokens.
        state.used_blocks = len({block.block_hash_num_tokens for block in hits if block.ref_cnt > 0})
        state.kept_tokens = self._count_kept(request, hits)
        state.look_again_s = now_s + max(_LOOK_S, now_s - state.turn.arrived_s)
        return hits

    def keeps_out(self, request: Request, state: RequestState, now_s: float) -> bool:
        """Tell whether the request would begin a job for which there is no room yet."""
        is_out_of_patience = now_s - state.turn.arrived_s >= self._longest_wait_s
        if self._share == 0 or is_out_of_patience or not _is_of_new_job(request, state):
            return False
        if self._places is None:
            self._places = self.demand.count_places()
            self._begins = set(self._begun.values())
        if state.entry.number not in self._begins and len(self._begins) + 1 > self._places:
            return True
        self._begins.add(state.entry.number)
        return False

    def limits(self, request: Request, state: RequestState, now_s: float) -> bool:
        """Tell whether the request has to wait for its turn."""
        if self._limits and now_s >= state.look_again_s:
            self.look(request, state, now_s)
        return self._computes(request, state)

    def holds(self, request: Request, state: RequestState, now_s: float) -> bool:
        """Tell whether the request, of those that are limited, waits in this step and lets others pass."""
        is_due = now_s >= self._next_s or now_s - state.turn.arrived_s >= self._longest_wait_s
        if is_due and self._next in (None, request.request_id):
            self._next = request.request_id
            return False
        if not state.was_held:
            state.was_held = True
            self.held_turns += 1
        return True

    def admitted(self, request: Request, state: RequestState, now_s: float) -> None:
        """Note that the request runs: if it computes its context, others wait until that has paid.

        So they do where it went without its turn, because nothing ran: it took others' room all the same.
        """
        self.demand.note_jobs()
        if _is_of_new_job(request, state):
            self._begun[request.request_id] = state.entry.number
        if self._computes(request, state):
            seconds = self._find_seconds(request.num_tokens, state.kept_tokens)
            self._next_s = max(self._next_s, now_s + seconds / self._share)
            self._next = None

    def end(self, request: Request) -> None:
        """Note that the request is over."""
        self._begun.pop(request.request_id, None)

    def _computes(self, request: Request, state: RequestState) -> bool:
        return self._limits and state.kept_tokens < _KEPT_SHARE * request.num_tokens

    def _count_kept(self, request: Request, hits: Sequence[KVCacheBlock]) -> int:
        """Count the tokens of the request that are in either cache. Each group of layers has a block for them."""
        ends = {block.block_hash_num_tokens or 0 for block in hits}
        if self._loses_whole:
            return max(ends, default=0)
        return (len(ends) + self._count_elsewhere(request)) * self._block_size


def _is_of_new_job(request: Request, state: RequestState) -> bool:
    """Tell whether the request is a job's first. Without tools none begins: what comes next comes from a human."""
    return not state.entry.turns and may_call_tools(request)
