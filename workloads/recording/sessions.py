"""Recorded requests as jobs: a thread is a job, a request a turn, and waits are as recorded, or shorter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from tool_runtime.agent.job import Context, Job, ToolCall, ToolResult, Turn
from workloads.loaded import LoadedJobs, check_enough, check_options
from workloads.recording.line import Line
from workloads.recording.reader import Recording, read_recording
from workloads.recording.threads import Thread, find_threads

_RECORDED_NOTE = (
    "Sizes, times, sessions and the equality of {}-token blocks are recorded, the text is not. What follows a reply "
    "comes as long after it as it did."
)


def load_sessions(path: Path, *, jobs: int | None, max_context: int | None, max_gap_s: float | None) -> LoadedJobs:
    """Load the first `jobs` threads of a recording, all for None. Raises InputError for bad input."""
    check_options(jobs, 1.0)
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
            f"{number}-{self.thread.session or 'nameless'}",
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
