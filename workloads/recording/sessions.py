"""Makes jobs of recorded requests: those that follow each other are a thread, a thread is a job, a request a turn.

Waits are as recorded, or shorter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile
from pathlib import Path

from tool_runtime.agent.job import Context, Job, ToolCall, ToolResult, Turn
from workloads.loaded import LoadedJobs, check_enough
from workloads.recording.line import Line
from workloads.recording.reader import Recording, read_recording


@dataclass(slots=True)
class Thread:
    """Requests one after the other. Sub-agents that run beside their session's others have threads of their own."""

    session: str | None
    requests: list[Line] = field(default_factory=list)

    @property
    def ended_ms(self) -> float:
        """When its latest reply was complete."""
        return self.requests[-1].timestamp + self.requests[-1].latency_ms


def find_threads(requests: Iterable[Line], block_tokens: int) -> list[Thread]:
    """Find the threads, in the order of their beginnings. `requests` are in the order in which they came.

    A request goes on from the thread of its session that is idle and whose blocks it repeats furthest. One without a
    session goes on from the thread whose last full block it repeats.
    """
    finder = _Finder(block_tokens)
    for request in requests:
        finder.add(request)
    return finder.threads


class _Finder:
    def __init__(self, block_tokens: int) -> None:
        self.threads: list[Thread] = []
        self._block_tokens = block_tokens
        self._of_session: dict[str, list[Thread]] = {}
        self._by_end: dict[int, Thread] = {}

    def add(self, request: Line) -> None:
        thread = self._find_nameless(request) if request.session is None else self._find_named(request)
        if thread is None:
            thread = Thread(request.session)
            self.threads.append(thread)
            if request.session is not None:
                self._of_session.setdefault(request.session, []).append(thread)
        thread.requests.append(request)
        full = list_full_blocks(request, self._block_tokens)
        if request.session is None and full:
            self._by_end[full[-1]] = thread

    def _find_named(self, request: Line) -> Thread | None:
        assert request.session is not None
        idle = [thread for thread in self._of_session.get(request.session, ()) if thread.ended_ms <= request.timestamp]
        return max(idle, key=lambda thread: _rank(thread, request), default=None)

    def _find_nameless(self, request: Line) -> Thread | None:
        for block in reversed(request.hash_ids[: request.input_length // self._block_tokens]):
            thread = self._by_end.get(block)
            if thread is not None and thread.ended_ms <= request.timestamp:
                return thread
        return None


def list_full_blocks(request: Line, block_tokens: int) -> Sequence[int]:
    """List the blocks that prompt and reply fill, from the first on."""
    return [*request.hash_ids, *request.reply_ids][: (request.input_length + request.output_length) // block_tokens]


def _rank(thread: Thread, request: Line) -> tuple[int, float]:
    latest = thread.requests[-1]
    known = zip([*latest.hash_ids, *latest.reply_ids], request.hash_ids, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], known)), thread.ended_ms


_RECORDED_NOTE = (
    "Sizes, times, sessions and the equality of {}-token blocks are recorded, the text is not. What follows a reply "
    "comes as long after it as it did."
)

_NAMELESS = "nameless"


def load_sessions(path: Path, *, jobs: int | None, max_context: int | None, max_gap_s: float | None) -> LoadedJobs:
    """Load the first `jobs` threads of a recording, all for None. Raises InputError for bad input."""
    recording = read_recording(path)
    loaded = build_jobs(recording, recording.requests, max_context=max_context, max_gap_s=max_gap_s)
    check_enough(jobs, len(loaded.jobs), path)
    return replace(loaded, jobs=loaded.jobs[:jobs])


def build_jobs(
    recording: Recording, requests: Sequence[Line], *, max_context: int | None = None, max_gap_s: float | None = None
) -> LoadedJobs:
    """Build jobs of some of a recording's requests, which are in the order in which they came; the first comes at 0.

    A thread ends before its first request with more than `max_context` tokens in prompt and reply together. Waits are
    cut to `max_gap_s`. Requests without a reply are left out.
    """
    answered = [request for request in requests if request.output_length]
    size = recording.header.block_tokens
    threads = find_threads(answered, size)
    whole = sum(len(thread.requests) for thread in threads)
    kept = [cut for thread in threads if (cut := _cut(thread, max_context)).requests]
    first_ms = min((thread.requests[0].timestamp for thread in kept), default=0.0)
    losses = tuple(recording.describe_losses())
    notes = [recording.assumption or _RECORDED_NOTE.format(size), *losses]
    if len(answered) < len(requests):
        notes.append(f"Requests that ended without a reply are left out: {len(requests) - len(answered)}.")
    if beyond := whole - sum(len(thread.requests) for thread in kept):
        notes.append(f"Requests left out because their session had grown beyond {max_context:,} tokens: {beyond}.")
    if max_gap_s is not None:
        notes.append(f"Waits between requests are cut to {max_gap_s:g} s.")
    jobs = [_Builder(thread, size, max_gap_s, first_ms).build(number) for number, thread in enumerate(kept)]
    return LoadedJobs(jobs, tuple(notes), losses=losses)


def find_session(job: Job) -> str:
    """Find the session of a job that `build_jobs` made; one without a session is its own."""
    session = job.id.partition("-")[2]
    return job.id if session == _NAMELESS else session


def _cut(thread: Thread, max_context: int | None) -> Thread:
    fits = len(thread.requests)
    if max_context is not None:
        sizes = [request.input_length + request.output_length for request in thread.requests]
        fits = next((place for place, tokens in enumerate(sizes) if tokens > max_context), fits)
    return Thread(thread.session, thread.requests[:fits])


@dataclass(frozen=True, slots=True)
class _Builder:
    thread: Thread
    block_tokens: int
    max_gap_s: float | None
    first_ms: float

    def build(self, number: int) -> Job:
        requests = self.thread.requests
        return Job(
            f"{number}-{self.thread.session or _NAMELESS}",
            (),
            turns=tuple(self._build_turns(requests)),
            arrival_s=(requests[0].timestamp - self.first_ms) / 1000,
        )

    def _build_turns(self, requests: Sequence[Line]) -> Iterator[Turn]:
        for request, following in pairwise(requests):
            context = self._build_context(request, following)
            wait_s = (following.timestamp - request.timestamp - request.latency_ms) / 1000
            if self.max_gap_s is not None:
                wait_s = min(wait_s, self.max_gap_s)
            calls = tuple(ToolCall(name, "{}") for name in request.called)
            if calls:
                yield Turn(tool_calls=calls, results=tuple(ToolResult("", wait_s) for _ in calls), context=context)
            else:
                yield Turn(pause_s=wait_s, context=context)
        yield Turn(context=self._build_context(requests[-1], None))

    def _build_context(self, request: Line, following: Line | None) -> Context:
        blocks = tuple(request.hash_ids)
        if following is not None and self._is_extended(request, following):
            # The rest of the prompt stands at the beginning of that block.
            blocks = (*blocks[:-1], following.hash_ids[len(blocks) - 1])
        return Context(
            blocks=blocks,
            block_tokens=self.block_tokens,
            tokens=request.input_length,
            reply_tokens=request.output_length,
            came_s=(request.timestamp - self.first_ms) / 1000,
        )

    def _is_extended(self, request: Line, following: Line) -> bool:
        """Tell whether the next prompt goes on with this one and its reply, as far as full blocks tell."""
        known = request.input_length + request.output_length
        full = known // self.block_tokens
        mine = [*request.hash_ids, *request.reply_ids][:full]
        return following.input_length >= known and list(following.hash_ids[:full]) == mine
