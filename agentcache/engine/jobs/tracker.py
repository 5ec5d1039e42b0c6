"""Follows every request beside vLLM's scheduler, and steers eviction, pins and order by what its job has done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from agentcache._evictor import FreeContext
from agentcache.engine.blocks.pins import Pin, PinEnd, Pins, pin_rank
from agentcache.engine.jobs.family import FamilyBooks
from agentcache.engine.jobs.finish_classes import OVER, PREEMPTED, UNKNOWN, FinishClasses, ReuseFactors
from agentcache.engine.jobs.job_finder import JobFinder
from agentcache.engine.marks import is_search_step, shorten, tells_more
from agentcache.engine.observe.prompt_change import PromptChanges
from agentcache.engine.observe.stats import JobStats, end_turn, find_places
from agentcache.engine.order.admission import AdmissionControl
from agentcache.engine.order.job_queue import ORDINARY, find_priority
from agentcache.engine.order.tenants import TenantShares
from agentcache.engine.parts import Observers, Part, mark_answers, request_ids
from agentcache.engine.replies.ended_reply import ToolReader, calls_of, is_answer, is_whole
from agentcache.engine.request_state import NOTHING_TOLD, QueuePriority, RequestState, Waits, begin_turn, note_admission
from agentcache.engine.vllm.types import EngineCoreOutputs, KVCacheBlock, Request
from agentcache.engine.vllm.workers import KVConnectorBase_V1
from agentcache.engine.waits import WaitReason
from agentcache.policy.price import TurnCost
from agentcache.policy.runtime_policy import RuntimePolicy
from tool_runtime.learning.duration_store import DurationStore
from tool_runtime.learning.job_entry import Departure, Gap
from tool_runtime.learning.job_table import MAX_EXPIRED
from tool_runtime.learning.runtime import AgentRuntime
from tool_runtime.learning.tool_key import ToolKey
from tool_runtime.learning.ttl import Hold


@dataclass(eq=False, kw_only=True)
class JobTracker(Part):
    """Follows every request of a client. Costs O(blocks of the request) when it comes and when it ends.

    A request's block hashes are of `hash_block_size` tokens. `pins` and `factors` are None under a policy without them,
    `store` where durations are forgotten at the end, `connector` where KV is nowhere else. `shows_text`: tokens are
    kept to show what clients change. `states` are of the requests that have come and not ended, by their id. `tenants`
    is None where they have no shares.
    """

    runtime_policy: RuntimePolicy
    runtime: AgentRuntime
    pins: Pins | None
    waiting: AdmissionControl
    factors: ReuseFactors | None
    finish_classes: FinishClasses
    turn_cost: TurnCost
    hash_block_size: int
    tool_reader: ToolReader | None
    count_waiting: Callable[[], int]
    store: DurationStore | None
    shows_text: bool
    connector: KVConnectorBase_V1 | None
    observers: Observers
    clock: Callable[[], float]
    stats: JobStats = field(default_factory=JobStats)
    states: dict[str, RequestState] = field(default_factory=dict)
    tenants: TenantShares | None = None

    def __post_init__(self) -> None:
        """Begin without jobs."""
        self.stats_guard = self.observers.guard("job_stats", self.stats.clear)
        self.changes = PromptChanges(self.hash_block_size, shows_text=self.shows_text)
        self.changes_guard = self.observers.guard("prompt_changes", self.changes.clear)
        self._places_guard = self.observers.guard("hit_places")
        self.finder = JobFinder(self.hash_block_size, self.runtime.jobs)
        self.families = FamilyBooks(self.finder, self.pins)
        self._without_token: set[str] = set()
        # Of the requests that ended in this step those whose replies were whole and called no tool.
        self._answered: set[str] = set()
        self._may_expire = MAX_EXPIRED

    def arrived(self, request: Request) -> None:
        """Book a client's request that has come, unless it is a step of a search, which is no turn."""
        if is_search_step(request):
            return
        # A job that left and is named again begins anew.
        self.end_departed()
        now_s, name = self.clock(), shorten(request.request_id)
        job, session, parent, found_by = self.finder.find(request)
        if self.runtime.jobs.drop_overdue(job):
            # It was not yet its turn to leave: so many leave in a step.
            self.end_departed()
            job, session, parent, found_by = self.finder.find(request)
        self.finder.watch(request, found_by)
        gap = self.runtime.arrived(job, name, parent, client_session=session)
        tenant = None if self.tenants is None else self.tenants.find(request).name
        self.stats_guard.tell(self.stats.begin, job, now_s, found_by, request.session_id, tenant)
        pinned = gap is not None and self._end_gap(job, gap, now_s)
        continues, left_s = (None, now_s) if gap is None else (gap.request, now_s - gap.seconds)
        overlap = self.finder.compare(continues, request)
        entry = self.runtime.jobs.get(job)
        assert entry is not None, "jobs with requests stay in the table"
        turn = begin_turn(request, entry, overlap.diverged_at, now_s)
        is_told = entry.agents or self.families.promises.given or tells_more(request)
        told = self.families.hear(request, entry, gap) if is_told else NOTHING_TOLD
        since_s, hurry_s = max(entry.arrival_s, told.since_s), told.expected.hurry_s
        order, behind = self.runtime_policy.order, told.behind
        priority = find_priority(order, since_s, now_s, pinned=pinned, behind=behind, hurry_s=hurry_s)
        repeats, waits = self.finder.repeats_reply(request, overlap), Waits(now_s)
        state = RequestState(name, entry, turn, priority, pinned, continues, overlap, left_s, repeats, waits, told)
        if overlap.diverged_at is not None:
            turn.change = self.changes_guard.ask(None, self.changes.explain, request, overlap, continues)
        self.states[request.request_id] = state
        self._without_token.add(request.request_id)
        self.waiting.guard(request, state)

    def priority_of(self, request: Request) -> QueuePriority:
        """Return where a request that comes now stands in the queue: by its arrival if it is of no job."""
        state, now_s = self.states.get(request.request_id), self.clock()
        return state.priority if state is not None else QueuePriority(ORDINARY, now_s, now_s, by_arrival=True)

    def find_wait(self, request: Request, available: int) -> WaitReason | None:
        """Find why the request is not to be admitted in this step: `pins`, `new job` or `load`; None if it may be."""
        state, tenants = self.states.get(request.request_id), self.tenants
        if state is None or (tenants is not None and tenants.passes(request)):
            return None
        return self.waiting.find_wait(request, state, available, self.clock())

    def note_wait(self, request: Request, reason: WaitReason) -> None:
        """Note what holds a request that has not run yet."""
        state = self.states.get(request.request_id)
        if state is not None and state.waits.reason != reason:
            state.waits.note(reason, self.clock())

    def admitted(self, request: Request, hit_tokens: int, filled: Collection[int]) -> None:  # noqa: ARG002
        """Note that the request holds its blocks and runs, for the first time or again."""
        state = self.states.get(request.request_id)
        if state is None or state.has_run:
            return
        now_s, stats, turn = self.clock(), request.prefill_stats, state.turn
        note_admission(state, now_s, stats)
        state.has_run = True
        turn.hits = self._places_guard.ask({}, find_places, self.connector, request, stats)
        self.runtime.load.admitted(
            now_s - turn.arrived_s, self.turn_cost.of_lost(state.overlap.shared_tokens, turn.recomputed_tokens)
        )
        self.waiting.admitted(request, state, now_s)
        if state.told.agent is not None:
            self.families.admitted(state, state.told.agent)
        self._end_return(state)

    def begins_job(self, request: Request) -> bool:
        """Tell whether the request goes on from no turn that is known."""
        state = self.states.get(request.request_id)
        return state is None or state.continues is None

    def find_return(self, request: Request) -> int | None:
        """Find the tokens of its prompt that the job will come back with, if not with the reply; None if with it."""
        state = self.states.get(request.request_id)
        return None if state is None or state.repeats_reply else self.finder.count_messages(request)

    def stepped(self, outputs: Mapping[int, EngineCoreOutputs]) -> None:
        """Note which requests have their first token, and tell clients which replies were final answers."""
        if self._without_token:
            for request_id in self._without_token.intersection(request_ids(outputs)):
                self._without_token.discard(request_id)
                self.states[request_id].turn.first_token_s = self.clock()
        if self._answered:
            mark_answers(outputs, self._answered)
            self._answered.clear()

    def on_free(
        self, request: Request, blocks: Sequence[KVCacheBlock] = (), *, prefix_only: bool = False, whole: bool = False
    ) -> FreeContext:
        """Book a request that has finished or is preempted; return what the evictor is to know of its blocks.

        Those of a finished turn are pinned if that is worth while. The context is empty where no job is known.
        """
        if not request.is_finished():
            # Its blocks are wanted again as soon as there is room.
            state = self.states.get(request.request_id)
            job = state.entry.number if state is not None else 0
            return FreeContext(finish_class=PREEMPTED, job=job, prefix_only=prefix_only, whole=whole)
        self.end_departed()
        state = self.states.pop(request.request_id, None)
        self._without_token.discard(request.request_id)
        if state is None:
            return FreeContext(prefix_only=prefix_only, whole=whole)
        self.waiting.end(request)
        self._end_return(state)
        worth = 1.0 if self.tenants is None else self.tenants.weigh(request)
        finish_class, key = self._finish_turn(request, state)
        if self.factors is not None and key is not None:
            worth *= self.factors.find(key)
        pin = self._begin_pin(request, state, key, blocks) if key is not None else None
        return FreeContext(
            finish_class=finish_class,
            factor=worth,
            job=state.entry.number,
            prefix_only=prefix_only,
            whole=whole,
            pin=pin.number if pin is not None else None,
        )

    def on_late_free(self, context: FreeContext) -> FreeContext:
        """Return the context of blocks freed late, of a request that was over before: its pin may have ended since."""
        is_over = context.pin is not None and self.pins is not None and not self.pins.is_live(context.pin)
        return context.without_pin() if is_over else context

    def step(self) -> None:
        """End what is over by now. Called before each step is scheduled."""
        self.waiting.step(self.count_waiting())
        if self.pins is not None:
            self.pins.step()
        self.end_departed(MAX_EXPIRED)
        if self.store is not None:
            self.store.step()

    def close(self) -> None:
        """Save what was learned: the engine stops, or is about to have another tracker."""
        self.stats_guard.tell(self.stats.close, self.runtime.jobs.jobs, self.clock())
        if self.store is not None:
            self.store.close()

    def reset(self) -> None:
        """Forget which blocks are cached, after a reset. Prompts are still matched to their jobs' turns."""
        self.finder.reset()
        self.changes_guard.tell(self.changes.clear)
        if self.pins is not None:
            self.pins.reset()

    def check_integrity(self) -> None:
        """Raise when the job table or the pins contradict themselves."""
        self.runtime.jobs.check_integrity()
        if self.pins is not None:
            self.pins.check_integrity()

    def end_departed(self, most: int | None = None) -> None:
        """Forget jobs that have left the table, and those idle for too long, `most` until the next step."""
        self._may_expire = self._may_expire if most is None else most
        for departed in self.runtime.expire(self._may_expire):
            self._may_expire = max(0, self._may_expire - (departed.cause is Departure.IDLE))
            job = departed.job.session
            self.stats_guard.tell(self.stats.end, departed, self.clock())
            self.finder.forget(job)
            self.changes_guard.tell(self.changes.forget, departed.job.pending)
            if self.pins is not None:
                self.pins.end_all(PinEnd.JOB_OVER, job)

    def _end_gap(self, job: str, gap: Gap, now_s: float) -> bool:
        """Learn from the gap of a job that is back. Return whether what its turn left is pinned."""
        if gap.certain:
            self.stats_guard.tell(self.stats.add_gap, job, gap, now_s)
            if self.factors is not None:
                self.factors.observe(gap.seconds)
        return self.pins is not None and self.pins.await_return(gap.request)

    def _finish_turn(self, request: Request, state: RequestState) -> tuple[int, ToolKey | None]:
        """Book the turn. Return its finish class and what its job waits for: None if it is over or was cut off."""
        job, whole = state.entry.session, is_whole(request)
        calls = calls_of(request, self.tool_reader) if whole else []
        self.stats_guard.tell(
            lambda: self.stats.add_turn(job, end_turn(state, request, calls, self.clock()), request.trace_headers)
        )
        self.finder.note_reply(request, job, state.request)
        if (agent := state.told.agent) is not None:
            agent.running -= 1
        if not whole:
            self.runtime.failed(job, state.request)
            self.finder.note_cut(request, job, state.request)
            return UNKNOWN, None
        if agent is None and is_answer(request, calls):
            self._answered.add(request.request_id)
        self.runtime.rounds.note_turn(self.clock() - (state.turn.scheduled_s or state.turn.arrived_s))
        tokens = request.num_prompt_tokens
        prompt = request.block_hashes[: tokens // self.hash_block_size]
        pending = self.runtime.finished(job, state.request, calls, prompt_tokens=tokens, prompt=prompt)
        if pending is None:
            self.finder.forget(job)
            return OVER, None
        self.finder.note_turn(request, job, state.request)
        if self.changes.shows_text:
            self.changes_guard.tell(self.changes.note, request, state.request, state.continues)
        goes_on = state.told is NOTHING_TOLD or self.families.finished(request, state, pending)
        return self.finish_classes.number(pending.key), pending.key if goes_on else None

    def _end_return(self, state: RequestState) -> None:
        if self.pins is not None and state.continues is not None:
            self.pins.end(state.continues, PinEnd.RETURNED)

    def _begin_pin(
        self, request: Request, state: RequestState, key: ToolKey, blocks: Sequence[KVCacheBlock]
    ) -> Pin | None:
        if self.pins is None:
            return None
        # Live pins outlive the request, and must not keep it alive.
        tokens, turn, promises = request.num_tokens, state.request, self.families.promises

        def decide(age_s: float, at_stake: int) -> Hold:
            costs, queued = self.turn_cost.of_hold(tokens, at_stake), self.count_waiting() > 0
            hold = self.runtime.decide_hold(key, age_s=age_s, queued=queued, **costs)
            return promises.lengthen(turn, hold, age_s, costs["loss_s"]) if turn in promises.given else hold

        rank = pin_rank(self.runtime_policy.pin_rank, state.entry.arrival_s)
        pin = self.pins.begin(
            state.request,
            job=state.entry.session,
            tenant="" if self.tenants is None else self.tenants.find(request).id,
            turn=state.turn.turn,
            blocks=blocks,
            decide=decide,
            rank=rank if self.tenants is None else self.tenants.rank(rank),
        )
        if pin is not None:
            self.stats_guard.tell(self.stats.add_pin, state.entry.session, pin)
        return pin
