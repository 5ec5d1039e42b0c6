"""Holds back requests that would take pinned blocks or the room of senior jobs, and keeps what requests will hit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentcache.engine.blocks.pins import LATEST_S, PinEnd, Pins
from agentcache.engine.order.load_control import LoadControl
from agentcache.engine.order.tenants import TenantShares
from agentcache.engine.request_state import RequestState
from agentcache.engine.vllm.base import cdiv
from agentcache.engine.vllm.types import KVCacheBlock, Request, RequestStatus
from agentcache.engine.waits import WaitReason
from agentcache.policy.runtime_policy import SMALL_S, Order, RuntimePolicy

# A job with so many turns behind it has come far, whatever others have done: agents of many turns on small contexts
# gain nothing from waits.
FAR_TURNS = 5


class Juniors:
    """Tells whose turns leave room to others: new jobs', and those of jobs that have come less far than most.

    A job that has come far has a long context, dear to lose, and is the sooner to end and free it. How far that is
    depends on the agents, so jobs are compared with one another, up to `FAR_TURNS`.
    """

    def __init__(self, share: float, find_turns: Callable[[float], int]) -> None:
        """Take the share of jobs that are juniors; `find_turns` gives the turns behind a job above it."""
        self._share = share
        self._find_turns = find_turns
        # With fewer turns behind it a job is a junior. None until somebody asks in this step.
        self._bound: int | None = None

    def step(self) -> None:
        """Note that a step is scheduled next: jobs have gone on."""
        self._bound = None

    def include(self, turn: int) -> bool:
        """Tell whether a job with so many turns behind it is a junior. One without any always is."""
        if self._bound is None:
            self._bound = max(1, min(FAR_TURNS, self._find_turns(self._share)))
        return turn < self._bound


class AdmissionControl:
    """As the policy's `runtime_policy` says."""

    def __init__(
        self,
        runtime_policy: RuntimePolicy,
        pins: Pins | None,
        *,
        num_blocks: int,
        block_size: int,
        price_taken: Callable[[float], float],
        find_work: Callable[[Request, int, int | None], float],
        count_running: Callable[[], int],
        find_turns: Callable[[float], int],
        find_growth: Callable[[], float],
        load_control: LoadControl,
        tenants: TenantShares | None = None,
    ) -> None:
        """`price_taken` gives the seconds that taking a block costs which ends so many tokens into its sequence.

        `find_work` gives the seconds that a request takes at most of which so many tokens are cached, and, where its
        client has told, so many of the reply are expected. `find_turns`
        gives the number of turns that a share of the jobs under way have not behind them yet, `find_growth` the tokens
        that a job is still to add to a prompt, as a multiple of the prompt's. `tenants` None: they have no shares.
        """
        self._order = runtime_policy.order or Order()
        self.patience_s = self._order.patience_s
        """From its arrival on: after so long a request goes before those of older jobs, and takes pinned blocks."""
        self._reserve = int(self._order.reserve * num_blocks)
        self._num_blocks = num_blocks
        self._guarded = pins if runtime_policy.protect_waiting else None
        self._respected = pins if runtime_policy.wait_for_pins != "none" else None
        self._weighs = runtime_policy.wait_for_pins == "weighed"
        self._block_size = block_size
        self._price_taken = price_taken
        self._find_work = find_work
        self._count_running = count_running
        self._find_growth = find_growth
        self.load_control = load_control
        self._tenants = tenants
        self._juniors = Juniors(self._order.juniors, find_turns)
        # In this step requests wait for pins; juniors wait for room beside them.
        self._held_back = self._holds_juniors = False
        # Since when the pins have kept requests from being admitted.
        self._held_since_s: float | None = None

    def _count_held_by_running(self, available: int) -> int:
        """Count the blocks of running requests, as far as they are to have room to grow when they come back."""
        return int(self._order.running * (self._num_blocks - available))

    def step(self, waiting: int) -> None:
        """Note that a step is scheduled next, and how many requests wait."""
        self._held_back = self._holds_juniors = False
        self._juniors.step()
        self.load_control.step()
        if not waiting:
            # The last one that was held back was aborted.
            self._held_since_s = None

    def guard(self, request: Request, state: RequestState) -> None:
        """Keep what the request will hit, against those that come behind it in the queue.

        A small request keeps its place by arrival, and waits neither for pins nor for load control.
        """
        if self._guarded is None and not self._weighs:
            return
        if self._guarded is not None and state.overlap.leaves and state.continues is not None:
            # What survives of it is kept for the request from now on.
            self._guarded.end(state.continues, PinEnd.RETURNED)
        hits = self.load_control.look(request, state, state.turn.arrived_s)
        if self._weighs and self._is_small(request, hits, state.told.expected.expected_output_length):
            state.priority = state.priority._replace(by_arrival=True)
        elif not (state.pinned and state.overlap.leaves) and self.load_control.limits(
            request, state, state.turn.arrived_s
        ):
            # For as long as it may wait, what is left of its context would take room from those that go on. What a
            # pin has kept is kept on.
            return
        free = [block.block_id for block in hits if block.ref_cnt == 0]
        if free and self._guarded is not None:
            lift = 0.0 if self._tenants is None else self._tenants.lift(self._tenants.find(request).id)
            self._guarded.guard(request.request_id, free, max(0.0, LATEST_S - state.priority.time_s) + lift)

    def find_wait(self, request: Request, state: RequestState, available: int, now_s: float) -> WaitReason | None:
        """Find why the request is not to be admitted in this step; None if it may be.

        `available` blocks are free, or the request's already.

        While it waits, nothing behind it without a pin is admitted either: lesser requests would keep a large one
        waiting for ever. Those that keep their place by arrival go all the same, until its patience is over. A junior
        leaves room for the others to grow (`Order`), and holds back juniors alone: it waits for as long as what its job
        takes of that room until its end would cost, and so not for long if that is little. A request that has
        waited for `patience_s` goes, however many wait with it. Load control decides on its own which go that compute
        their contexts, whatever their patience.
        """
        if self._respected is None or request.status == RequestStatus.PREEMPTED or state.priority.by_arrival:
            return None
        if self.load_control.keeps_out(request, state, now_s):
            return "new job"
        if self.load_control.limits(request, state, now_s):
            return "load" if self.load_control.holds(request, state, now_s) else None
        if now_s - state.turn.arrived_s >= self.patience_s:
            return None
        pinned = self._respected.blocks
        lacking = self._count_needed(request, state) - (available - pinned)
        under_way = pinned + self._count_held_by_running(available)
        if under_way and self._reserve and self._juniors.include(state.turn.turn):
            room = min(under_way, self._reserve)
            taken = min(lacking + room, room, self._count_still_to_come(request, state))
            # A smaller request of a junior behind this one waits as well.
            self._holds_juniors = self._holds_juniors or (
                taken > 0 and now_s - state.turn.arrived_s < self._find_cost(taken, request)
            )
            if self._holds_juniors:
                return "new job"
        if pinned and not self._held_back and not state.pinned:
            self._held_back = lacking > 0 and self._is_worth_waiting(min(lacking, pinned), request, now_s)
        return "pins" if self._held_back and not state.pinned else None

    def _is_small(self, request: Request, hits: Sequence[KVCacheBlock], expected_tokens: int | None) -> bool:
        # Each group of layers has a block for the same tokens.
        kept = self._block_size * len({block.block_hash_num_tokens for block in hits})
        return self._find_work(request, kept, expected_tokens) <= SMALL_S

    def _count_needed(self, request: Request, state: RequestState) -> int:
        """Count the blocks of the request and its reply, if that is known, but for those of others that run."""
        tokens = request.num_tokens + (state.told.expected.expected_output_length or 0)
        return cdiv(tokens, self._block_size) - state.used_blocks

    def _is_worth_waiting(self, blocks: int, request: Request, now_s: float) -> bool:
        """Weigh the wait: to take the blocks costs the seconds of rebuilding them, in which all that runs stands still.

        Requests wait for as long as that, counted from the last admission, whichever is next meanwhile: were each one's
        own wait counted, a long queue would pay that price at every admission. It does where its requests are out of
        patience.
        """
        if not self._weighs:
            return True
        cost_s = self._find_cost(blocks, request)
        if cost_s < self._order.least_wait_s:
            return False
        if self._held_since_s is None:
            self._held_since_s = now_s
        return now_s - self._held_since_s < cost_s

    def _count_still_to_come(self, request: Request, state: RequestState) -> int:
        """Count the blocks that the request's job will have at its end and has not now."""
        return int(cdiv(request.num_tokens, self._block_size) * (1 + self._find_growth())) - state.kept_blocks

    def _find_cost(self, blocks: int, request: Request) -> float:
        """Return the seconds for which all that runs together would stand still while so many blocks are computed.

        Whose they are is not looked at: a pinned context is taken to be about as long as the request's.
        """
        return blocks * self._price_taken(request.num_tokens / 2) * self._count_running()

    def admitted(self, request: Request, state: RequestState, now_s: float) -> None:
        """Note that the request runs, for the first time."""
        self.end(request)
        self.load_control.admitted(request, state, now_s)
        if not state.pinned:
            self._held_since_s = None

    def end(self, request: Request) -> None:
        """Note that the request waits no longer, or is over."""
        if self._guarded is not None:
            self._guarded.drop_guard(request.request_id)
