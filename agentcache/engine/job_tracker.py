"""The agent runtime beside vLLM's scheduler: told of requests, it steers eviction, pins and order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

from agentcache.engine.durations_keeper import DurationsKeeper
from agentcache.engine.end_classes import OVER, PREEMPTED, EndClasses
from agentcache.engine.factors import Factors
from agentcache.engine.job_log import JobLog, view_job
from agentcache.engine.job_names import job_name, shorten
from agentcache.engine.job_queue import ORDINARY, Place, find_place
from agentcache.engine.job_views import JobView, RuntimeCounts
from agentcache.engine.lineage import Lineage
from agentcache.engine.pins import PinEnd, Pins, pin_rank
from agentcache.engine.rebuild_cost import RebuildCost
from agentcache.engine.tool_reader import ToolReader, calls_of
from agentcache.engine.visits import Visit, is_whole, view_turn
from agentcache.engine.waiting import Waiting
from agentcache.policy.steering import Steering
from tool_runtime.job_table import Gap, Parent, bounded_id
from tool_runtime.runtime import AgentRuntime
from tool_runtime.tool_key import ToolKey
from tool_runtime.ttl import Hold


@dataclass(frozen=True, slots=True)
class Fate:
    """How the evictor is to take the blocks that a request frees."""

    end_class: int = 0
    factor: float = 1.0
    job: int = 0


class JobTracker:
    """Follows every request of a client. Costs O(blocks of the request) when it comes and when it ends.

    Each of a request's block hashes is of `hash_block_size` tokens. `pins` and `factors` None are of a policy without
    them, `keeper` None of a server that forgets durations at its end.
    """

    def __init__(
        self,
        *,
        steering: Steering,
        runtime: AgentRuntime,
        pins: Pins | None,
        waiting: Waiting,
        factors: Factors | None,
        rebuild_cost: RebuildCost,
        hash_block_size: int,
        tool_reader: ToolReader | None,
        count_waiting: Callable[[], int],
        keeper: DurationsKeeper | None,
        clock: Callable[[], float],
    ) -> None:
        self.runtime = runtime
        self.pins = pins
        self.log = JobLog()
        self.clock = clock
        self._steering = steering
        self._waiting = waiting
        self._factors = factors
        self._rebuild_cost = rebuild_cost
        self._tool_reader = tool_reader
        self._count_waiting = count_waiting
        self._keeper = keeper
        self._classes = EndClasses()
        self._lineage = Lineage(hash_block_size)
        self._visits: dict[str, Visit] = {}
        self._without_token: set[str] = set()

    def arrived(self, request: Request) -> None:
        """A client's request has come."""
        # A job that left and is named again begins anew.
        self._end_departed()
        now_s = self.clock()
        name = shorten(request.request_id)
        job, session, parent = self._find_family(request)
        gap = self.runtime.arrived(job, name, parent)
        record = self.log.begin(job, session, now_s)
        pinned = gap is not None and self._end_gap(gap)
        continues = gap.request if gap is not None else None
        overlap = self._lineage.compare(continues, request)
        place = find_place(self._steering.order, record.arrived_s, now_s, pinned=pinned)
        entry = self.runtime.jobs.get(job)
        assert entry is not None
        turn = entry.turns + entry.failures + len(entry.running) - 1
        visit = Visit(name, job, turn, now_s, place, pinned, continues, overlap, entry.number)
        self._visits[request.request_id] = visit
        self._without_token.add(request.request_id)
        self._waiting.guard(request, visit)

    def place_of(self, request: Request) -> Place:
        """Where it stands in the queue."""
        visit = self._visits.get(request.request_id)
        return visit.place if visit is not None else Place(ORDINARY, self.clock(), self.clock())

    @property
    def patience_s(self) -> float:
        """After so long a request goes before those of older jobs."""
        return self._waiting.patience_s

    def waits_for_pins(self, request: Request, free_blocks: int) -> bool:
        """Whether the request is not to be admitted in this step, because it would take pinned blocks."""
        visit = self._visits.get(request.request_id)
        return visit is not None and self._waiting.waits_for_pins(request, visit, free_blocks, self.clock())

    def admitted(self, request: Request) -> None:
        """It holds its blocks and runs, for the first time or again."""
        visit = self._visits.get(request.request_id)
        if visit is None or visit.scheduled_s is not None:
            return
        visit.scheduled_s = self.clock()
        stats = request.prefill_stats
        visit.cached_tokens = stats.num_cached_tokens if stats is not None else 0
        self.runtime.load.admitted(visit.scheduled_s - visit.arrived_s, self._rebuild_cost.of_lost(visit))
        self._waiting.admitted(request, visit)
        self._end_return(visit)

    def got_tokens(self, request_id: str) -> None:
        """Called for every request of a step that has a new token, while any waits for its first."""
        if request_id in self._without_token:
            self._without_token.discard(request_id)
            self._visits[request_id].first_token_s = self.clock()

    @property
    def awaits_tokens(self) -> bool:
        return bool(self._without_token)

    @contextmanager
    def parting(self, request: Request, blocks: Sequence[KVCacheBlock] = ()) -> Iterator[Fate]:
        """The request frees these blocks, all that it has, inside: it is over, or preempted."""
        if not request.is_finished():
            # Its blocks are wanted again as soon as there is room.
            visit = self._visits.get(request.request_id)
            yield Fate(PREEMPTED, job=visit.job_number if visit is not None else 0)
            return
        self._end_departed()
        visit = self._visits.pop(request.request_id, None)
        self._without_token.discard(request.request_id)
        if visit is None:
            yield Fate()
            return
        self._waiting.end(request)
        self._end_return(visit)
        whole = is_whole(request)
        calls = calls_of(request, self._tool_reader) if whole else []
        self.log.add_turn(visit.job, view_turn(request, visit, calls, self.clock()))
        if not whole:
            self.runtime.failed(visit.job, visit.request)
            yield Fate(job=visit.job_number)
            return
        pending = self.runtime.finished(visit.job, visit.request, calls)
        if pending is None:
            self._lineage.forget(visit.job)
            yield Fate(OVER, job=visit.job_number)
            return
        self._lineage.note(request, visit.job, visit.request)
        factor = self._factors.find(pending.key) if self._factors else 1.0
        fate = Fate(self._classes.number(pending.key), factor, visit.job_number)
        if self.pins is None:
            yield fate
            return
        with self._pinning(request, visit, pending.key, blocks):
            yield fate

    def step(self) -> None:
        """Before each step is scheduled: what is over by now."""
        self._waiting.step(self._count_waiting())
        if self.pins is not None:
            self.pins.step()
        self._end_departed()
        if self._keeper is not None:
            self._keeper.step()

    def close(self) -> None:
        """The engine stops."""
        if self._keeper is not None:
            self._keeper.close()

    def reset(self) -> None:
        """The prefix cache was reset. Whose turn a prompt goes on from is known as before."""
        self._lineage.reset()
        if self.pins is not None:
            self.pins.reset()

    def release(self, session: str, tenants: Collection[str | None] | None = None) -> bool:
        """The jobs of the session, one a tenant, are over, or those of these tenants. False if there are none."""
        named = None if tenants is None else {job_name(session, tenant) for tenant in tenants}
        jobs = [job for job in self._find_jobs(session) if named is None or job in named]
        for job in jobs:
            if self.pins is not None:
                self.pins.end_all(PinEnd.RELEASED, job)
            self.runtime.jobs.end(job)
        self._end_departed()
        return bool(jobs)

    def view_session(self, session: str) -> list[JobView]:
        """The session's jobs, one a tenant."""
        return [view for job in self._find_jobs(session) if (view := self._view(job)) is not None]

    def view_jobs(self) -> Iterator[JobView]:
        """The jobs of the table, the one that was active last first."""
        for entry in sorted(self.runtime.jobs.jobs, key=lambda entry: -entry.last_active_s):
            if (view := self._view(entry.session)) is not None:
                yield view

    def view_ended(self) -> Iterator[JobView]:
        """Jobs that left the table, the latest first."""
        return self.log.view_ended(self.clock())

    def count(self) -> RuntimeCounts:
        """Since the start."""
        return self.log.count(len(self.runtime.jobs), self.pins)

    def check_integrity(self) -> None:
        """Raise when the job table or the pins contradict themselves."""
        self.runtime.jobs.check_integrity()
        if self.pins is not None:
            self.pins.check_integrity()

    def _end_departed(self) -> None:
        for departed in self.runtime.expire():
            job = departed.job.session
            self.log.end(departed)
            self._lineage.forget(job)
            if self.pins is not None:
                self.pins.end_all(PinEnd.JOB_OVER, job)

    def _find_jobs(self, session: str) -> list[str]:
        name = bounded_id(session)
        return [job for job, record in self.log.jobs.items() if record.session == name]

    def _view(self, job: str) -> JobView | None:
        entry = self.runtime.jobs.get(job)
        if entry is None:
            return None
        return view_job(self.log.jobs[job], entry, self.pins, self.clock(), is_over=entry.is_final)

    def _find_family(self, request: Request) -> tuple[str, str, str | Parent]:
        """The job in the table, the session as its client knows it, and the turn that the request goes on from.

        Tenants do not share jobs.
        """
        owner = self._lineage.find_owner(request)
        if not request.session_id and owner is not None:
            job, record = owner.session, self.log.jobs.get(owner.session)
            session = record.session if record is not None else job
        else:
            name = request.session_id or request.request_id
            job, session = job_name(name, request.cache_salt), bounded_id(name)
        entry = self.runtime.jobs.get(job)
        pending = entry.pending if entry is not None else ()
        return job, session, self._lineage.find_parent(request, job, owner, pending)

    def _end_gap(self, gap: Gap) -> bool:
        """The job is back. Whether what its turn left is pinned."""
        if gap.certain:
            self.log.add_gap(gap)
            if self._factors is not None:
                self._factors.observe(gap.seconds)
        return self.pins is not None and self.pins.await_return(gap.request)

    def _end_return(self, visit: Visit) -> None:
        if self.pins is not None and visit.continues is not None:
            self.pins.end(visit.continues, PinEnd.RETURNED)

    @contextmanager
    def _pinning(self, request: Request, visit: Visit, key: ToolKey, blocks: Sequence[KVCacheBlock]) -> Iterator[None]:
        assert self.pins is not None

        def decide(age_s: float, at_stake: int) -> Hold:
            return self.runtime.decide_hold(
                key,
                age_s=age_s,
                loss_s=self._rebuild_cost.of_end(request.num_tokens, at_stake),
                prefill_s=self._rebuild_cost.of_whole(request.num_tokens),
                share=self._rebuild_cost.share(at_stake),
                waiting=self._count_waiting(),
            )

        with self.pins.pinning(
            visit.request,
            job=visit.job,
            tenant=request.cache_salt,
            turn=visit.turn,
            blocks=blocks,
            decide=decide,
            rank=pin_rank(self._steering.pin_rank, self.log.jobs[visit.job].arrived_s),
        ) as pin:
            yield
        if pin is not None and pin.blocks:
            self.log.add_pin(visit.job, pin)
