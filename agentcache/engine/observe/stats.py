"""Notes what is shown of turns, and collects it of jobs, with their pins, and counts over all. Decides nothing."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from agentcache.engine.blocks.pins import Pin
from agentcache.engine.job_summary import JobSummary
from agentcache.engine.observe.tenant_usage import TenantUsage
from agentcache.engine.replies.ended_reply import describe_status
from agentcache.engine.views import FoundBy, Histogram, HitPlace, LossCause, RuntimeCounts, ToolCounts, TurnView
from agentcache.engine.vllm.types import CacheHitSource, PrefillStats, Request
from agentcache.engine.vllm.workers import KVConnectorBase_V1
from agentcache.job_log import JobLog
from tool_runtime.learning.job_entry import Departed, Departure, Gap, JobEntry
from tool_runtime.learning.tool_key import HUMAN, ToolKey

if TYPE_CHECKING:
    from agentcache.engine.request_state import RequestState
    from agentcache.job_spans import JobSpans, JobTrace

MAX_TURNS = 64
# Of all jobs; the oldest leave first. They take 15 MB.
_MAX_TURNS_IN_ALL = 16_384
_MAX_PINS = 16
_MAX_ENDED_JOBS = 500
_MAX_TOOLS = 32
# Of a session that is kept as its client spells it.
_MAX_SESSION = 256
_MAX_EXPIRED = 10_000
# A reply, which a client may dictate, can call thousands.
_MAX_CALLED = 16
_WAIT_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60)


def end_turn(state: RequestState, request: Request, calls: Sequence[ToolKey], now_s: float) -> TurnView:
    """Note that a turn has finished with these calls; return it."""
    turn = state.turn
    if not state.has_run:
        turn.waits = state.waits.end(now_s)
    if turn.first_token_s is None and request.num_output_tokens:
        # The first was the last as well.
        turn.first_token_s = now_s
    turn.finished_s, turn.status = now_s, describe_status(request)
    turn.output_tokens = request.num_output_tokens
    if state.has_run:
        # One that was cut short may have computed a part alone.
        read = request.num_prompt_tokens if turn.output_tokens else request.num_computed_tokens
        turn.computed_tokens = max(0, min(read, request.num_prompt_tokens) - turn.cached_tokens)
    turn.tools = tuple(islice(dict.fromkeys(call.tool for call in calls), _MAX_CALLED))
    return turn


@dataclass(slots=True)
class JobRecord:
    """One job, beside what the job table knows of it. `has_main`: its main agent has had a turn.

    `asked_s` is the arrival of the first request since the job's last answer, None while there is none. `session` is as
    the client spells it, None if it names none or one of more than 256 characters. `turns` and `pins` are the latest,
    oldest first; `hits`, `evicted_from` and `summary` are of all turns.
    """

    finished_s: float
    has_main: bool = False
    session: str | None = None
    asked_s: float | None = None
    turns: deque[TurnView] = field(default_factory=lambda: deque(maxlen=MAX_TURNS))
    pins: deque[Pin] = field(default_factory=lambda: deque(maxlen=_MAX_PINS))
    hits: Counter[HitPlace] = field(default_factory=Counter)
    evicted_from: Counter[LossCause] = field(default_factory=Counter)
    summary: JobSummary = field(default_factory=JobSummary)
    trace: JobTrace | None = None

    def add(self, turn: TurnView, gpu_s: float) -> None:
        """Add a request that has ended to the summary, and the seconds of GPUs that it took."""
        total = self.summary
        total.requests += 1
        total.prompt_tokens += turn.prompt_tokens
        total.cached_tokens += turn.cached_tokens
        total.computed_tokens += turn.computed_tokens
        total.output_tokens += turn.output_tokens
        total.gpu_s += gpu_s
        if turn.first_token_s is not None:
            ttft_s, mean_s = turn.first_token_s - turn.arrived_s, total.ttft_mean_s or 0.0
            total.first_tokens += 1
            total.ttft_mean_s = mean_s + (ttft_s - mean_s) / total.first_tokens
            total.ttft_max_s = max(total.ttft_max_s or 0.0, ttft_s)
        if (change := turn.change) is not None:
            total.left_tokens[change.cause] = total.left_tokens.get(change.cause, 0) + change.left_tokens
        for reason, seconds in turn.waits.items():
            total.waits_s[reason] = total.waits_s.get(reason, 0.0) + seconds


class JobStats:
    """`jobs` holds a record for every job of the table, by its name there.

    Of turns the latest are kept, 64 of a job and 16,384 of all jobs; of pins 16 a job, none older than its turns. Of
    jobs that are over the latest 500 are kept.
    """

    def __init__(
        self,
        price: Callable[[int, int, int], float] = lambda *_: 0.0,
        gpus: int = 1,
        log: JobLog | None = None,
        spans: JobSpans | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`price` tells the seconds that cached, computed and output tokens took on so many GPUs.

        `wall_clock` gives seconds since 1970.
        """
        self._price = price
        self._gpus = gpus
        self.log = log
        self.spans = spans
        self._wall_clock = wall_clock
        self.clear()

    def clear(self) -> None:
        """Begin without jobs, and with all counts at 0."""
        self.jobs: dict[str, JobRecord] = {}
        self.counts = RuntimeCounts()
        self.ended: deque[tuple[JobRecord, JobEntry]] = deque(maxlen=_MAX_ENDED_JOBS)
        self._latest: deque[tuple[JobRecord, TurnView]] = deque()
        self._expired: deque[str | None] = deque(maxlen=_MAX_EXPIRED)
        self._usage = TenantUsage(self.counts.tenants)

    def begin(self, job: str, now_s: float, by: FoundBy, session: str | None = None, tenant: str | None = None) -> None:
        """Note the arrival of a request of a job, how that was found, and the session that its client names.

        `tenant` is the name of the job's, None where tenants have no shares.
        """
        self.counts.found_jobs[by] += 1
        record = self.jobs.setdefault(job, JobRecord(now_s))
        record.summary.tenant = tenant
        if session and len(session) <= _MAX_SESSION:
            record.session = session
        if record.asked_s is None:
            record.asked_s = now_s
        if self.spans is not None:
            record.trace = record.trace or self.spans.begin(job, now_s)
            record.trace.session = record.session

    def add_turn(self, job: str, turn: TurnView, headers: Mapping[str, str] | None = None) -> None:
        """Record a turn that has ended, and the latency of the answer if it is one. `headers` say who traces it."""
        record, counts = self.jobs[job], self.counts
        if turn.thread is None or not record.has_main:
            # Sub-agents may outlive the job.
            record.finished_s = max(record.finished_s, turn.finished_s)
        record.has_main = record.has_main or turn.thread is None
        record.turns.append(turn)
        price_s = self._price(turn.cached_tokens, turn.computed_tokens, turn.output_tokens)
        record.add(turn, self._gpus * price_s)
        if (tenant := record.summary.tenant) is not None:
            self._usage.add_turn(tenant, turn, self._gpus * price_s)
        if self.spans is not None and record.trace is not None:
            self.spans.add_turn(record.trace, turn, headers)
        if turn.status == "finished" and not turn.tools and turn.thread is None:
            # Of several requests at a time the first to answer ends the question, the others are their own.
            asked_s = turn.arrived_s if record.asked_s is None else record.asked_s
            add(counts.answer_latency_s, turn.finished_s - asked_s)
            record.asked_s = None
        self._latest.append((record, turn))
        if len(self._latest) > _MAX_TURNS_IN_ALL:
            self._forget_oldest()
        counts.prompt_tokens += turn.prompt_tokens
        counts.hit_tokens += turn.cached_tokens
        counts.recomputed_tokens += turn.recomputed_tokens
        counts.missed_tokens.update(turn.misses)
        for counted in (counts, record):
            counted.hits.update(turn.hits)
            counted.evicted_from.update(turn.evicted_from)
        for reason, seconds in turn.waits.items():
            add(counts.waits.setdefault(reason, Histogram(_WAIT_BOUNDS_S, (0,) * len(_WAIT_BOUNDS_S))), seconds)
        if turn.change is not None:
            counts.changed_prompts[turn.change.cause] += 1
            counts.left_tokens[turn.change.cause] += turn.change.left_tokens

    def add_pin(self, job: str, pin: Pin) -> None:
        """Record a pin of a turn that was added before."""
        self.jobs[job].pins.append(pin)

    def add_gap(self, job: str, gap: Gap, now_s: float) -> None:
        """Count a gap that has ended for its tool, for "other", or for the human."""
        is_human, tools = gap.turn.key == HUMAN, self.counts.tools
        name = "(human)" if is_human else gap.turn.key.tool
        if name not in tools and len(tools) >= _MAX_TOOLS and not is_human:
            name = "other"
        count = tools.setdefault(name, ToolCounts())
        count.gaps += 1
        count.seconds += gap.seconds
        if self.spans is not None and (trace := (record := self.jobs[job]).trace) is not None:
            # It was booked a moment after it had ended, and before anything else.
            ended = (turn for turn in reversed(record.turns) if turn.finished_s <= gap.turn.finished_s)
            for turn in islice(ended, 1):
                self.spans.add_pause(trace, turn, now_s)

    def end(self, departed: Departed, now_s: float) -> None:
        """Count and log a job that left the table."""
        entry = departed.job
        record = self.jobs.pop(entry.session, None)
        self.counts.jobs_ended[departed.cause.value] += 1
        if record is not None and departed.cause is Departure.IDLE:
            self._expired.append(record.session)
        if record is None or not (entry.turns or record.summary.requests):
            return
        self._sum_up(record, entry, departed.cause.value, now_s)
        self.ended.append((record, entry))
        if not entry.turns:
            return
        add(self.counts.job_latency_s, record.finished_s - entry.arrival_s)
        add(self.counts.job_turns, entry.turns)
        if record.summary.tenant is not None:
            self._usage.end_job(record.summary.tenant, record.finished_s - entry.arrival_s)

    def close(self, jobs: Iterable[JobEntry], now_s: float) -> None:
        """Log the jobs that are left: the engine stops."""
        for entry in jobs:
            if (record := self.jobs[entry.session]).summary.requests:
                self._sum_up(record, entry, "server stopped", now_s)
        for told in (self.log, self.spans):
            if told is not None:
                told.close()

    def _sum_up(self, record: JobRecord, entry: JobEntry, cause: str, now_s: float) -> None:
        """End and log what the job comes to."""
        total = record.summary
        total.end(entry, cause, record.finished_s, now_s, self._wall_clock())
        # Without a second cache turns have no places.
        total.cached_by_place = dict[str, int](record.hits.items()) or {"gpu": total.cached_tokens}
        total.request_ids = [turn.request_id for turn in record.turns]
        total.threads = list(dict.fromkeys(turn.thread for turn in record.turns if turn.thread is not None))
        agents = map(entry.agents.get, total.threads)
        total.parents = [None if agent is None else agent.parent for agent in agents]
        if self.log is not None:
            self.log.write(asdict(total), entry.session, record.session or entry.client_session)
        if self.spans is not None and record.trace is not None:
            self.spans.end(record.trace, total, record.finished_s)

    def session_of(self, job: str) -> str | None:
        """Return the session of a job of the table as its client spells it; None if it names none, or a long one."""
        return self.jobs[job].session

    def take_expired(self) -> list[str | None]:
        """Return the sessions of jobs that were idle for too long, of those that ended since the last call.

        None stands for those that their clients have not named.
        """
        expired = list(dict.fromkeys(self._expired))
        self._expired.clear()
        return expired

    def _forget_oldest(self) -> None:
        record, turn = self._latest.popleft()
        # It may have left as the job's oldest.
        if record.turns and record.turns[0] is turn:
            record.turns.popleft()
        if record.pins and record.pins[0].turn == turn.turn:
            record.pins.popleft()


def add(histogram: Histogram, value: float) -> None:
    """Count one value."""
    bounds, buckets = histogram.bounds, histogram.buckets
    histogram.buckets = tuple(count + (value <= bound) for count, bound in zip(buckets, bounds, strict=True))
    histogram.count += 1
    histogram.total += value


_PLACES: Mapping[CacheHitSource, HitPlace] = {
    CacheHitSource.DEVICE: "gpu",
    CacheHitSource.HOST: "host",
    CacheHitSource.DISK: "disk",
}


def find_places(
    connector: KVConnectorBase_V1 | None, request: Request, stats: PrefillStats | None
) -> dict[HitPlace, int]:
    """Split the cached tokens of a request that has just been admitted by the place that supplied them.

    vLLM asks its connectors the same for `vllm:prompt_tokens_cached_by_source`, once what they load is known. `gpu` and
    `host` are always there, other places where tokens came from them. What a connector cannot place, or adds up to
    another number, came from `elsewhere`.

    Returns:
        Nothing without a connector: there is one cache alone.
    """
    if connector is None or stats is None:
        return {}
    places: Counter[HitPlace] = Counter({"gpu": stats.num_local_cached_tokens, "host": 0})
    brought = stats.num_external_cached_tokens
    sources = connector.get_external_cache_hit_sources(request, brought) if brought else {}
    if sum(sources.values()) != brought:
        sources = {CacheHitSource.EXTERNAL_UNSPECIFIED: brought}
    for source, tokens in sources.items():
        places[_PLACES.get(source, "elsewhere")] += tokens
    return dict(places)
