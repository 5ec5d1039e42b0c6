"""Spaces turns that compute their contexts, and slows new jobs, while jobs want more KV than the caches hold.

Each takes the room of other jobs, which then compute theirs again. Without a limit all do so, for ever (thrashing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentcache.engine.marks import may_call_tools
from agentcache.engine.request_state import RequestState
from agentcache.engine.vllm.types import KVCacheBlock, Request
from agentcache.policy.price import Demand, Room

# A turn that finds less of its prompt in the caches computes its context. Chosen of 0.5, 0.8 and 0.9 on seed 0.
_KEPT_SHARE = 0.8
# A turn is looked at again after so many seconds, and then whenever it has waited twice as long.
_LOOK_S = 1.0
# From so many refills a round on, jobs that compute their contexts end sooner than jobs that wait for room. Chosen of 1
# and 1.4 on seeds 0 to 3.
_MOST_REFILLS = 1.4
# For as long a turn waits for room for its job. Chosen of 15, 20, 30 and 450 s on seeds 0 to 2: the longer, the sooner
# jobs end, and the later the slowest first tokens come.
LONGEST_ROOM_S = 20.0


class LoadControl:
    """Lets a turn that finds too little of its prompt compute it once the turn before it has paid.

    Such turns go one at a time, in the order of the queue, each as long after the one before as that one's prompt took
    to compute, divided by `share`: so computing contexts again takes at most that share of the engine's time. A turn
    waits for at most what the contexts ahead of it take to compute, divided by `share`, for `longest_wait_s` at most,
    and no longer than anything runs. Free blocks make no difference: a job whose tool runs wants them, pinned or not.
    If all that the caches hold can be computed more than once in a round (`Demand.find_refills`), the share is as many
    times larger: room kept while tools run is idle.

    Turns of a job for which there is no room beside those that came before it (`Demand.find_room`) wait as well, each
    for `LONGEST_ROOM_S` at most: what the job takes others would compute again, and end later. Not once its prompt is
    as long as jobs are: it has taken its room, and would lose it while it waits. From `_MOST_REFILLS` on none waits.
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
        # How often all that the caches hold can be computed in a round, as of this step.
        self._refills = 0.0
        # That of this step. None until somebody asks.
        self._room: Room | None = None
        # The next may go from then on; in this step, this one.
        self._next_s = 0.0
        self._next: str | None = None

    def step(self) -> None:
        """Note that a step is scheduled next: jobs have come, grown and gone."""
        if self._share > 0:
            self._refills = self.demand.find_refills(self._find_seconds)
            self._limits = self._find_share() < 1 and self.demand.exceeds_room()
        self._next = None
        self._room = None

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
        """Tell whether there is no room yet for the request's job. A chat without tools takes none for long."""
        is_on = self._share > 0 and self._refills < _MOST_REFILLS
        if not is_on or now_s - state.turn.arrived_s >= LONGEST_ROOM_S or not may_call_tools(request):
            return False
        if self._room is None:
            self._room = self.demand.find_room()
        return state.entry.number > self._room.latest_job and request.num_tokens < self._room.job_tokens

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
        if self._computes(request, state):
            seconds = self._find_seconds(request.num_tokens, state.kept_tokens)
            self._next_s = max(self._next_s, now_s + seconds / self._find_share())
            self._next = None

    def _find_share(self) -> float:
        return self._share * max(1.0, self._refills)

    def _computes(self, request: Request, state: RequestState) -> bool:
        return self._limits and state.kept_tokens < _KEPT_SHARE * request.num_tokens

    def _count_kept(self, request: Request, hits: Sequence[KVCacheBlock]) -> int:
        """Count the tokens of the request that are in either cache. Each group of layers has a block for them."""
        ends = {block.block_hash_num_tokens or 0 for block in hits}
        if self._loses_whole:
            return max(ends, default=0)
        return (len(ends) + self._count_elsewhere(request)) * self._block_size
