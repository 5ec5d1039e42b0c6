"""Makes jobs of recorded requests: a request is a turn, a thread a job, those that it began are its sub-agents.

Waits are as recorded, or shorter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from tool_runtime.agent.job import Context, Job, Start, ToolCall, ToolResult, Turn
from workloads.loaded import LoadedJobs, check_enough
from workloads.recording.families import Member, find_families
from workloads.recording.line import Line
from workloads.recording.reader import Recording, read_recording
from workloads.recording.threads import find_threads

_RECORDED_NOTE = (
    "Sizes, times, sessions and the equality of {}-token blocks are recorded, the text is not. What follows a reply "
    "comes as long after it as it did."
)

_FAMILIES_NOTE = (
    "Sub-agents: {} in {} jobs. They run beside the agent that began them, which waits for those for which it did; a "
    "job's latency ends with its main agent's last reply."
)

_NAMELESS = "nameless"


def load_sessions(path: Path, *, jobs: int | None, max_context: int | None, max_gap_s: float | None) -> LoadedJobs:
    """Load the first `jobs` jobs of a recording, all for None. Raises InputError for bad input."""
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
    families = find_families(threads, max_context)
    kept = [member.requests for family in families for member in family]
    builder = _Builder(size, max_gap_s, min((requests[0].timestamp for requests in kept), default=0.0))
    jobs = [builder.build(number, family) for number, family in enumerate(families)]
    losses = tuple(recording.describe_losses())
    notes = [recording.assumption or _RECORDED_NOTE.format(size), *losses]
    if len(answered) < len(requests):
        notes.append(f"Requests that ended without a reply are left out: {len(requests) - len(answered)}.")
    if beyond := whole - sum(map(len, kept)):
        notes.append(f"Requests left out because their session had grown beyond {max_context:,} tokens: {beyond}.")
    if max_gap_s is not None:
        notes.append(f"Waits between requests are cut to {max_gap_s:g} s.")
    if agents := len(kept) - len(jobs):
        notes.append(_FAMILIES_NOTE.format(agents, sum(bool(job.agents) for job in jobs)))
    return LoadedJobs(jobs, tuple(notes), losses=losses)


def find_session(job: Job) -> str:
    """Find the session of a job that `build_jobs` made; one without a session is its own."""
    session = job.id.partition("-")[2]
    return job.id if session == _NAMELESS else session


@dataclass(frozen=True, slots=True)
class _Builder:
    block_tokens: int
    max_gap_s: float | None
    first_ms: float

    def build(self, number: int, family: Sequence[Member]) -> Job:
        main, *agents = (self._build_thread(number, member) for member in family)
        return replace(main, agents=tuple(agents))

    def _build_thread(self, number: int, member: Member) -> Job:
        return Job(
            f"{number}-{member.thread.session or _NAMELESS}",
            (),
            turns=tuple(self._build_turns(member)),
            arrival_s=(member.requests[0].timestamp - self.first_ms) / 1000,
            thread=member.name,
            start=self._build_start(member),
            tenant=member.requests[0].tenant,
        )

    def _build_start(self, member: Member) -> Start | None:
        if (parent := member.parent) is None:
            return None
        delay_s = self._wait_s(parent.requests[member.place].ended_ms, member.requests[0])
        return Start(parent.name, member.place, delay_s, member.is_awaited)

    def _build_turns(self, member: Member) -> Iterator[Turn]:
        for place, (request, following) in enumerate(pairwise(member.requests)):
            context = self._build_context(request, following)
            # What waits for sub-agents begins anew when they have ended.
            wait_s = self._wait_s(member.resumed_ms.get(place, request.ended_ms), following)
            calls = tuple(ToolCall(name, "{}") for name in request.called)
            if calls:
                yield Turn(tool_calls=calls, results=tuple(ToolResult("", wait_s) for _ in calls), context=context)
            else:
                yield Turn(pause_s=wait_s, context=context)
        yield Turn(context=self._build_context(member.requests[-1], None))

    def _wait_s(self, ended_ms: float, following: Line) -> float:
        wait_s = (following.timestamp - ended_ms) / 1000
        return wait_s if self.max_gap_s is None else min(wait_s, self.max_gap_s)

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
