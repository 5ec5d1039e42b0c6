"""Chooses the part of a recording that is simulated: where most requests came in the shortest time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentcache.errors import InputError
from agentcache.plan.bounds import find_reuse
from agentcache.plan.settings import PlanSettings
from tool_runtime.agent.job import Context, Job
from workloads.loaded import LoadedJobs
from workloads.recording.line import Line
from workloads.recording.reader import Recording
from workloads.recording.sessions import build_jobs, find_session

# Tools whose calls are counted by name.
_NAMED_TOOLS = 5


@dataclass(frozen=True, slots=True)
class Stretch:
    """`requests` in a row, and the jobs made of those that have a reply and whose session is within `most_tokens`.

    `bounded_by` is what has no more room than that, with what to do. `speedup`: by how much closer together its
    sessions begin than they did.
    """

    recording: Recording
    requests: Sequence[Line]
    loaded: LoadedJobs
    most_tokens: int
    bounded_by: tuple[str, str]
    speedup: float = 1.0

    @property
    def kept(self) -> int:
        """Return how many requests are simulated."""
        return sum(len(each.turns) for job in self.loaded.jobs for each in job.family)

    @property
    def is_all(self) -> bool:
        """Tell whether the recording has no other requests."""
        return len(self.requests) == len(self.recording.requests)

    def describe_scope(self) -> str:
        """Say which share of the recording the figures are of, and why not of more."""
        recorded, left_out = len(self.recording.requests), [*self._describe_left_out()]
        if self.is_all:
            of = f"all {recorded:,} requests that were recorded"
        else:
            of = f"the busiest {len(self.requests):,} of {recorded:,} recorded requests, in a row"
        if left_out:
            of = f"{self.kept:,} of {of}"
        share = "" if self.kept == recorded else f": {self.kept / recorded:.1%} of them".replace("%", " %")
        return "; ".join([f"All figures are of {of}{share}", *left_out]) + "."

    def _describe_left_out(self) -> list[str]:
        answered = sum(1 for request in self.requests if request.output_length)
        said = []
        if beyond := answered - self.kept:
            what, remedy = self.bounded_by
            said.append(f"{beyond:,} more had grown beyond {what}, {self.most_tokens:,} tokens: {remedy}")
        if unanswered := len(self.requests) - answered:
            said.append(f"{unanswered:,} more had no reply")
        return said

    def describe_start(self, block_size: int) -> str:
        """Say by how much the empty cache at its beginning understates hits."""
        whole = build_jobs(self.recording, self.recording.requests, max_context=self.most_tokens).jobs
        return (
            f"Simulated is the busiest stretch, {len(self.requests):,} requests of {len(self.recording.requests):,}; "
            "what was cached before it is not there at its beginning. So a cache without end would hit "
            f"{find_reuse(self.loaded.jobs, block_size).endless_hits:.1%} of its tokens, and "
            f"{find_reuse(whole, block_size).endless_hits:.1%} of all (--requests takes more)."
        ).replace("%", " %")

    def describe_traffic(self) -> dict[str, str]:
        """Say what is simulated, as it was read: requests and jobs, tokens, and the calls of tools."""
        contexts = _list_contexts(self.loaded)
        prompts, replies = sum(each.tokens for each in contexts), sum(each.reply_tokens for each in contexts)
        turns = [turn for job in self.loaded.jobs for each in job.family for turn in each.turns]
        called = Counter(call.name for turn in turns for call in turn.tool_calls)
        named = called.most_common(_NAMED_TOOLS)
        tools = [f"{name} {count:,}" for name, count in named]
        if others := called.total() - sum(count for _, count in named):
            tools.append(f"others {others:,}")
        faster = f", sessions {self.speedup:g} times as close together" if self.speedup != 1 else ""
        seconds = (self.requests[-1].timestamp - self.requests[0].timestamp) / 1000
        return {
            "traffic": f"{self.kept:,} requests in {seconds:,.0f} s, {len(self.loaded.jobs):,} jobs{faster}",
            "tokens": f"{prompts:,} of prompts (mean context {prompts / self.kept:,.0f}), {replies:,} of replies",
            "tools": ", ".join(tools) or "none were called",
        }


def find_busiest(requests: Sequence[Line], count: int) -> Sequence[Line]:
    """Find the `count` requests in a row that came within the shortest time, the first of such; all if there are fewer.

    `requests` are in the order in which they came.
    """
    if len(requests) <= count:
        return requests
    times = [request.timestamp for request in requests]
    begin = min(range(len(times) - count + 1), key=lambda start: times[start + count - 1] - times[start])
    return requests[begin : begin + count]


def find_longest(recording: Recording, requests: Sequence[Line], most: int) -> int:
    """Find the longest request, prompt and reply, of those that fit a model that takes `most` tokens; 0 for none."""
    contexts = _list_contexts(build_jobs(recording, requests, max_context=most))
    return max((each.tokens + each.reply_tokens for each in contexts), default=0)


def _list_contexts(loaded: LoadedJobs) -> list[Context]:
    turns = (turn for job in loaded.jobs for each in job.family for turn in each.turns)
    return [turn.context for turn in turns if turn.context is not None]


def load_stretch(settings: PlanSettings, recording: Recording, requests: Sequence[Line], most: int) -> Stretch:
    """Build the jobs that fit the smallest cache and a model that takes `most` tokens. Raises InputError for none."""
    smallest = min(cell.kv_tokens for cell in settings.list_cells())
    if smallest < most:
        bounded_by = "the smallest cache", "give larger --kv-tokens"
    else:
        bounded_by = "the model's context", "give another --model"
    loaded = build_jobs(recording, requests, max_context=min(smallest, most))
    if not loaded.jobs:
        longest = max(request.input_length + request.output_length for request in requests)
        raise InputError(
            f"{settings.recording}: no request has a reply and fits both a cache of {smallest} tokens and the model's "
            f"{most}; the longest has {longest}: give a larger --kv-tokens or another --model"
        )
    loaded = replace(loaded, jobs=bring_closer(loaded.jobs, settings.speedup))
    return Stretch(recording, requests, loaded, min(smallest, most), bounded_by, settings.speedup)


def bring_closer(jobs: Sequence[Job], speedup: float) -> list[Job]:
    """Have sessions begin `speedup` times as close together; all within a session stays as far apart as it was."""
    begins: dict[str, float] = {}
    for job in jobs:
        begins.setdefault(find_session(job), job.arrival_s)
    earlier_s = {session: begin_s * (1 - 1 / speedup) for session, begin_s in begins.items()}
    return sorted((_move(job, earlier_s[find_session(job)]) for job in jobs), key=lambda job: job.arrival_s)


def _move(job: Job, earlier_s: float) -> Job:
    turns = tuple(
        replace(turn, context=turn.context and replace(turn.context, came_s=turn.context.came_s - earlier_s))
        for turn in job.turns
    )
    return replace(job, arrival_s=job.arrival_s - earlier_s, turns=turns)
