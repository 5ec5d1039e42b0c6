"""Follows every request beside vLLM's scheduler, and steers eviction, pins and order by what its job has done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from agentcache._evictor import FreeContext
from agentcache.engine.blocks.pins import Pin, PinEnd, Pins, pin_rank
from agentcache.engine.constants import ANSWER_MARK
from agentcache.engine.jobs.duration_store import DurationStore
from agentcache.engine.jobs.finish_classes import OVER, PREEMPTED, UNKNOWN, FinishClasses, ReuseFactors
from agentcache.engine.jobs.job_finder import JobFinder, is_search_step
from agentcache.engine.jobs.names import job_name, shorten, tenant_name
from agentcache.engine.jobs.request_state import RequestState, begin_turn, is_answer, is_whole
from agentcache.engine.observe.misses import find_places
from agentcache.engine.observe.prompt_change import PromptChanges
from agentcache.engine.observe.stats import MAX_TURNS, JobStats, hide_takers, view_job
from agentcache.engine.observe.views import JobView, RuntimeCounts
from agentcache.engine.order.admission import AdmissionControl
from agentcache.engine.order.job_queue import ORDINARY, QueuePriority, find_priority
from agentcache.engine.order.load_control import LoadControl
from agentcache.engine.parts import Observers, Part, request_ids
from agentcache.engine.replies.tool_reader import ToolReader, calls_of
from agentcache.engine.vllm.types import EngineCoreOutputs, KVCacheBlock, Request
from agentcache.engine.vllm.workers import KVConnectorBase_V1
from agentcache.engine.waits import WaitReason
from agentcache.policy.price import TurnCost
from agentcache.policy.runtime_policy import RuntimePolicy
from tool_runtime.learning.job_entry import Departure, Gap, JobEntry
from tool_runtime.learning.job_table import MAX_EXPIRED
from tool_runtime.learning.runtime import AgentRuntime
from tool_runtime.learning.tool_key import ToolKey
from tool_runtime.learning.ttl import Hold

# So many jobs of one session, and of them so many turns, are viewed or ended by one call, between two steps.
_MAX_JOBS_AT_ONCE = 256
_MAX_TURNS_AT_ONCE = 1024


class JobTracker(Part):
    """Follows every request of a client. Costs O(blocks of the request) when it comes and when it ends.

    Each of a request's block hashes is of `hash_block_size` tokens. `pins` and `factors` None are of a policy without
    them, `store` None of a server that forgets durations at its end, `connector` None of an engine whose KV is nowhere
    else. `shows_text`: tokens are kept to show what clients change. `observers` are those of the scheduler.
    """

    def __init__(
        self,
        *,
        runtime_policy: RuntimePolicy,
        runtime: AgentRuntime,
        pins: Pins | None,
        waiting: AdmissionControl,
        factors: ReuseFactors | None,
        turn_cost: TurnCost,
        hash_block_size: int,
        tool_reader: ToolReader | None,
        count_waiting: Callable[[], int],
        store: DurationStore | None,
        shows_text: bool,
        connector: KVConnectorBase_V1 | None,
        observers: Observers,
        clock: Callable[[], float],
    ) -> None:
        self.runtime = runtime
        self.pins = pins
        self.stats = JobStats()
        self.stats_guard = observers.guard("job_stats", self._forget_stats)
        self.clock = clock
        self._runtime_policy = runtime_policy
        self._waiting = waiting
        self._connector = connector
        self._factors = factors
        self._turn_cost = turn_cost
        self.tool_reader = tool_reader
        self._count_waiting = count_waiting
        self._store = store
        self._classes = FinishClasses()
        self._hash_block_size = hash_block_size
        self._changes = PromptChanges(hash_block_size, shows_text=shows_text)
        self._changes_guard = observers.guard("prompt_changes", self._changes.clear)
        self._places_guard = observers.guard("hit_places")
        self._finder = JobFinder(hash_block_size, runtime.jobs)
        self.states: dict[str, RequestState] = {}
        """By the request's id, those that have come and not ended."""
        self._without_token: set[str] = set()
        # Of the requests that ended in this step those whose replies were whole and called no tool.
        self._answered: set[str] = set()
        # So many jobs may expire until the next step.
        self._may_expire = MAX_EXPIRED

    @property
    def load_control(self) -> LoadControl:
        """What has turns wait where the jobs under way want more than the caches hold."""
        return self._waiting.load_control

    def arrived(self, request: Request) -> None:
        """Book a client's request that has come, unless it is a step of a search, which is no turn."""
        if is_search_step(request):
            return
        # A job that left and is named again begins anew.
        self._end_departed()
        now_s = self.clock()
        name = shorten(request.request_id)
        job, session, parent, found_by = self._finder.find(request)
        if self.runtime.jobs.drop_overdue(job):
            # It was not yet its turn to leave: so many leave in a step.
            self._end_departed()
            job, session, parent, found_by = self._finder.find(request)
        self._finder.watch(request, found_by)
        gap = self.runtime.arrived(job, name, parent, client_session=session)
        self.stats_guard.tell(self.stats.begin, job, now_s, found_by, request.session_id)
        pinned = gap is not None and self._end_gap(gap)
        continues = gap.request if gap is not None else None
        overlap = self._finder.compare(continues, request)
        entry = self.runtime.jobs.get(job)
        assert entry is not None, "jobs with requests stay in the table"
        priority = find_priority(self._runtime_policy.order, entry.arrival_s, now_s, pinned=pinned)
        turn = begin_turn(request, entry, overlap, now_s)
        left_s = now_s - gap.seconds if gap is not None else now_s
        state = RequestState(name, entry, turn, priority, pinned, continues, overlap, left_s)
        turn.change, state.repeats_reply = self._changes_guard.ask(
            (None, True), self._changes.find, request, overlap, continues
        )
        self.states[request.request_id] = state
        self._without_token.add(request.request_id)
        self._waiting.guard(request, state)

    def priority_of(self, request: Request) -> QueuePriority:
        """Return where a request that comes now stands in the queue: by its arrival if it is of no job."""
        state, now_s = self.states.get(request.request_id), self.clock()
        return state.priority if state is not None else QueuePriority(ORDINARY, now_s, now_s, by_arrival=True)

    def patience_s(self) -> float:
        """Return the seconds after which a request goes before those of older jobs."""
        return self._waiting.patience_s

    def find_wait(self, request: Request, available: int) -> WaitReason | None:
        """Find why the request is not to be admitted in this step: `pins`, `new job` or `load`; None if it may be.

        `available` blocks are free, or the request's already because a KV connector has loaded them.
        """
        state = self.states.get(request.request_id)
        return None if state is None else self._waiting.find_wait(request, state, available, self.clock())

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
        state.admit(now_s, stats)
        if stats is not None:
            turn.hits = self._places_guard.ask({}, find_places, self._connector, request, stats)
        self.runtime.load.admitted(
            now_s - turn.arrived_s, self._turn_cost.of_lost(state.overlap.shared_tokens, turn.recomputed_tokens)
        )
        self._waiting.admitted(request, state, now_s)
        self._end_return(state)

    def begins_job(self, request: Request) -> bool:
        """Tell whether the request goes on from no turn that is known."""
        state = self.states.get(request.request_id)
        return state is None or state.continues is None

    def find_return(self, request: Request) -> int | None:
        """Find the tokens of its prompt that the job will come back with, if not with the reply; None if with it."""
        state = self.states.get(request.request_id)
        if state is None or state.repeats_reply:
            return None
        return self._finder.count_messages(request)

    def stepped(self, outputs: Mapping[int, EngineCoreOutputs]) -> None:
        """Note which requests have their first token, and tell clients which replies were final answers."""
        if self._without_token:
            self.stats_guard.tell(self._note_first_tokens, request_ids(outputs))
        if self._answered:
            _mark_answers(outputs.values(), self._answered)
            self._answered.clear()

    def _note_first_tokens(self, names: Iterable[str]) -> None:
        for request_id in self._without_token.intersection(names):
            self._without_token.discard(request_id)
            self.states[request_id].turn.first_token_s = self.clock()

    def on_free(
        self,
        request: Request,
        blocks: Sequence[KVCacheBlock] = (),
        *,
        prefix_only: bool = False,
        whole: bool = False,
    ) -> FreeContext:
        """Book a request that is about to free all of its blocks, because it has finished or is preempted.

        A finished turn is booked, and its blocks are pinned if that is worth while.

        Returns:
            What the evictor is to know of the blocks. Requests that no job is known for have an empty context.
        """
        if not request.is_finished():
            # Its blocks are wanted again as soon as there is room.
            state = self.states.get(request.request_id)
            job = state.entry.number if state is not None else 0
            return FreeContext(finish_class=PREEMPTED, job=job, prefix_only=prefix_only, whole=whole)
        self._end_departed()
        state = self.states.pop(request.request_id, None)
        self._without_token.discard(request.request_id)
        if state is None:
            return FreeContext(prefix_only=prefix_only, whole=whole)
        self._waiting.end(request)
        self._end_return(state)
        finish_class, key = self._finish_turn(request, state)
        pin = self._begin_pin(request, state, key, blocks) if key is not None else None
        return FreeContext(
            finish_class=finish_class,
            factor=self._factors.find(key) if self._factors is not None and key is not None else 1.0,
            job=state.entry.number,
            prefix_only=prefix_only,
            whole=whole,
            pin=pin.number if pin is not None else None,
        )

    def on_late_free(self, context: FreeContext) -> FreeContext:
        """Return the context of blocks freed late, of a request that was over before: its pin may have ended since."""
        if context.pin is None or self.pins is None or self.pins.is_live(context.pin):
            return context
        return context.without_pin()

    def step(self) -> None:
        """End what is over by now. Called before each step is scheduled."""
        self._waiting.step(self._count_waiting())
        self._may_expire = MAX_EXPIRED
        if self.pins is not None:
            self.pins.step()
        self._end_departed()
        if self._store is not None:
            self._store.step()

    def close(self) -> None:
        """Save what was learned: the engine stops, or is about to have another tracker."""
        if self._store is not None:
            self._store.close()

    def reset(self) -> None:
        """Forget which blocks are cached, after a reset. Prompts are still matched to their jobs' turns."""
        self._finder.reset()
        self._changes_guard.tell(self._changes.clear)
        if self.pins is not None:
            self.pins.reset()

    def release(self, session: str, tenants: Collection[str | None] | None = None) -> list[str | None]:
        """End the session's jobs, one a tenant, or those of these tenants, up to 256 a call.

        Returns:
            Of each the session as its client names it, None where it names none; empty if there are no jobs.
        """
        # Those that end when nothing of them runs any more come last: another call ends more.
        jobs = sorted(self._find_jobs(session, tenants), key=lambda entry: entry.is_final)[:_MAX_JOBS_AT_ONCE]
        named = {entry.session for entry in self.runtime.jobs.find(session)}
        names = [
            session if entry.session in named else self.stats_guard.ask(None, self.stats.session_of, entry.session)
            for entry in jobs
        ]
        for entry in jobs:
            if self.pins is not None:
                self.pins.end_all(PinEnd.RELEASED, entry.session)
            self._changes_guard.tell(self._changes.forget, tuple(entry.pending))
            self.runtime.jobs.end(entry.session)
        self._end_departed()
        return names

    def take_expired(self) -> list[str | None]:
        """Return the sessions that were idle for too long, of those that ended since the last call.

        None stands for those that have no name, or are back. More may be over by now unless the list is empty.
        """
        # An engine core without requests takes no steps.
        self._may_expire = MAX_EXPIRED
        self._end_departed()
        find, expired = self.runtime.jobs.find, self.stats_guard.ask([], self.stats.take_expired)
        return [None if session is None or find(session) else session for session in expired]

    def view_session(self, session: str, tenants: Collection[str | None] | None = None) -> list[JobView]:
        """View the session's jobs, one a tenant, or those of these tenants; of many the first, with fewer turns."""
        jobs = self._find_jobs(session, tenants)[:_MAX_JOBS_AT_ONCE]
        max_turns = min(MAX_TURNS, max(1, _MAX_TURNS_AT_ONCE // max(1, len(jobs))))
        views = (self._view(entry, max_turns) for entry in jobs)
        # Who took a tenant's blocks may be another tenant.
        return list(views) if tenants is None else [hide_takers(view) for view in views]

    def view_jobs(self, max_turns: int = MAX_TURNS) -> Iterator[JobView]:
        """View the jobs of the table with their latest turns, the job that was active last first."""
        for entry in sorted(self.runtime.jobs.jobs, key=lambda entry: -entry.last_active_s):
            yield self._view(entry, max_turns)

    def view_ended(self, max_turns: int = MAX_TURNS) -> Iterator[JobView]:
        """View the jobs that left the table with their latest turns, the latest job first."""
        return self.stats.view_ended(self.clock(), max_turns)

    def count(self) -> RuntimeCounts:
        """Count everything since the start."""
        held_turns = self.load_control.held_turns
        return self.stats.count(len(self.runtime.jobs), self.pins, held_turns=held_turns)

    def check_integrity(self) -> None:
        """Raise when the job table or the pins contradict themselves."""
        self.runtime.jobs.check_integrity()
        if self.pins is not None:
            self.pins.check_integrity()

    def _end_departed(self) -> None:
        for departed in self.runtime.expire(self._may_expire):
            self._may_expire = max(0, self._may_expire - (departed.cause is Departure.IDLE))
            job = departed.job.session
            self.stats_guard.tell(self.stats.end, departed)
            self._finder.forget(job)
            self._changes_guard.tell(self._changes.forget, departed.job.pending)
            if self.pins is not None:
                self.pins.end_all(PinEnd.JOB_OVER, job)

    def _find_jobs(self, session: str, tenants: Collection[str | None] | None) -> list[JobEntry]:
        """Find jobs by their session; where none has this name, the job of the reply that has it as its id."""
        named = None if tenants is None else {job_name(session, tenant) for tenant in tenants}
        jobs = [entry for entry in self.runtime.jobs.find(session) if named is None or entry.session in named]
        replied = None if jobs else self._finder.find_by_reply(session, tenants)
        return jobs if replied is None else [replied]

    def _forget_stats(self) -> None:
        self.stats = JobStats()

    def _view(self, entry: JobEntry, max_turns: int) -> JobView:
        record, now_s = self.stats.jobs[entry.session], self.clock()
        return view_job(record, entry, self.pins, now_s, is_over=entry.is_final, max_turns=max_turns)

    def _end_gap(self, gap: Gap) -> bool:
        """Learn from the gap of a job that is back. Return whether what its turn left is pinned."""
        if gap.certain:
            self.stats_guard.tell(self.stats.add_gap, gap)
            if self._factors is not None:
                self._factors.observe(gap.seconds)
        return self.pins is not None and self.pins.await_return(gap.request)

    def _finish_turn(self, request: Request, state: RequestState) -> tuple[int, ToolKey | None]:
        """Book the turn. Return its finish class and what its job waits for: None if it is over or was cut off."""
        job, whole = state.entry.session, is_whole(request)
        calls = calls_of(request, self.tool_reader) if whole else []
        self.stats_guard.tell(lambda: self.stats.add_turn(job, state.end(request, calls, self.clock())))
        self._finder.note_reply(request, job, state.request)
        if not whole:
            self.runtime.failed(job, state.request)
            self._finder.note_cut(request, job, state.request)
            return UNKNOWN, None
        if is_answer(request, calls):
            self._answered.add(request.request_id)
        prompt_tokens = request.num_prompt_tokens
        prompt = request.block_hashes[: prompt_tokens // self._hash_block_size]
        pending = self.runtime.finished(job, state.request, calls, prompt_tokens=prompt_tokens, prompt=prompt)
        if pending is None:
            self._finder.forget(job)
            return OVER, None
        self._finder.note_turn(request, job, state.request)
        self._changes_guard.tell(self._changes.note, request, state.request)
        return self._classes.number(pending.key), pending.key

    def _end_return(self, state: RequestState) -> None:
        if self.pins is not None and state.continues is not None:
            self.pins.end(state.continues, PinEnd.RETURNED)

    def _begin_pin(
        self, request: Request, state: RequestState, key: ToolKey, blocks: Sequence[KVCacheBlock]
    ) -> Pin | None:
        if self.pins is None:
            return None
        # Live pins outlive the request, and must not keep it alive.
        tokens = request.num_tokens

        def decide(age_s: float, at_stake: int) -> Hold:
            return self.runtime.decide_hold(
                key,
                age_s=age_s,
                # Windows and states are beside the blocks that keep all tokens.
                loss_s=self._turn_cost.of_end(tokens, min(at_stake, tokens // self._turn_cost.block_size)),
                prefill_s=self._turn_cost.of_whole(tokens),
                share=self._turn_cost.share(at_stake),
                queued=self._count_waiting() > 0,
            )

        pin = self.pins.begin(
            state.request,
            job=state.entry.session,
            tenant=tenant_name(request.cache_salt),
            turn=state.turn.turn,
            blocks=blocks,
            decide=decide,
            rank=pin_rank(self._runtime_policy.pin_rank, state.entry.arrival_s),
        )
        if pin is not None:
            self.stats_guard.tell(self.stats.add_pin, state.entry.session, pin)
        return pin


def _mark_answers(all_outputs: Iterable[EngineCoreOutputs], answered: set[str]) -> None:
    """Tell data-parallel clients, who alone get finished requests, which of these were final answers."""
    for outputs in all_outputs:
        if outputs.finished_requests:
            outputs.finished_requests |= {name + ANSWER_MARK for name in answered & outputs.finished_requests}
