"""Converts the engines' jobs to the events of a run, so that the report package can show them.

Times are seconds since the first of the jobs arrived. Engines on several hosts have different clocks, so each view's
times count back from when it was taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from agentcache.engine.views import TurnView
from agentcache.report.events import JobEvent, PolicyEvent, RequestEvent, ToolCallEvent
from agentcache.report.figure import shorten
from agentcache.report.policy_run import PolicyRun
from agentcache.server.job_reader import EngineJob

_NAME_LENGTH = 16
# An answer cut off at its token limit is an answer.
_ENDS: dict[str, Literal["finished", "failed", "interrupted"]] = {"failed": "failed", "aborted": "interrupted"}


@dataclass(frozen=True, slots=True)
class NamedJob:
    """A job with a short, printable and unique name; `offset_s` converts its clock to the run's."""

    name: str
    view: EngineJob
    offset_s: float

    @property
    def idle_s(self) -> float:
        """Return the seconds since the job was last active."""
        return self.view.now_s - self.view.last_active_s

    @property
    def last(self) -> TurnView | None:
        """Return the last turn of its main agent, or of any where that has none."""
        turns = [turn for turn in self.view.turns if turn.thread is None] or self.view.turns
        return turns[-1] if turns else None

    @property
    def has_ended(self) -> bool:
        """Tell whether it is over or has its answer: few clients say that they are done, and a human may return."""
        view = self.view
        if view.is_over or view.running or view.waits_for or self.last is None:
            return view.is_over
        return self.last.status not in _ENDS


def name_jobs(views: Sequence[EngineJob]) -> list[NamedJob]:
    """Name the jobs, in order of arrival."""
    seen: Counter[str] = Counter()
    named = []
    for view in sorted(views, key=lambda view: view.arrived_s - view.now_s):
        name = shorten_session(view.session)
        seen[name] += 1
        named.append(NamedJob(name if seen[name] == 1 else f"{name} ({seen[name]})", view, 0.0))
    return align(named)


def align(jobs: Sequence[NamedJob]) -> list[NamedJob]:
    """Shift the jobs' clocks so that the first one arrives at 0."""
    span_s = max((job.view.now_s - job.view.arrived_s for job in jobs), default=0.0)
    return [replace(job, offset_s=span_s - job.view.now_s) for job in jobs]


def shorten_session(session: str) -> str:
    """Shorten a session's name so that it still differs from others, without characters that a page cannot show."""
    return shorten("".join(sign if sign.isprintable() else "·" for sign in session), _NAME_LENGTH)


def build_run(policy: str, jobs: Sequence[NamedJob], block_size: int | None) -> PolicyRun:
    """Build a run of what is known of the jobs. A job that has not ended has no JobEvent."""
    hits: Counter[str] = Counter()
    for job in jobs:
        for turn in job.view.turns:
            hits.update(turn.hits)
    run = PolicyRun(end=PolicyEvent(policy=policy, block_size=block_size, hit_tokens=dict(hits) or None))
    for job in jobs:
        run.requests += [_make_request(policy, job, turn) for turn in job.view.turns]
        run.tool_calls += _make_tool_calls(policy, job)
        if job.has_ended:
            run.jobs.append(_make_job(policy, job))
    return run


def build_lanes_run(policy: str, jobs: Sequence[NamedJob], most: int) -> PolicyRun:
    """Build a run of the `most` recently active jobs, for a plot that marks jobs without an end as interrupted.

    Running jobs are not interrupted, so they are given the end of a finished job, which has no mark.
    """
    latest = {job.name for job in sorted(jobs, key=lambda job: job.idle_s)[:most]}
    shown = align([job for job in jobs if job.name in latest])
    run = build_run(policy, shown, block_size=None)
    run.jobs += [_make_job(policy, job, status="finished") for job in shown if not job.has_ended]
    return run


def _make_request(policy: str, job: NamedJob, turn: TurnView) -> RequestEvent:
    first_token_s = _shift(job, turn.first_token_s)
    return RequestEvent(
        policy=policy,
        job=job.name,
        thread=turn.thread and shorten_session(turn.thread),
        turn=turn.turn,
        sent_s=turn.arrived_s + job.offset_s,
        first_token_s=first_token_s,
        finished_s=turn.finished_s + job.offset_s,
        queue_s=_between(turn.arrived_s, turn.scheduled_s),
        prefill_s=_between(turn.scheduled_s, turn.first_token_s),
        decode_s=_between(turn.first_token_s, turn.finished_s),
        prompt_tokens=turn.prompt_tokens,
        output_tokens=turn.output_tokens,
        cached_tokens=turn.cached_tokens,
        # The event derives recomputed tokens from the reusable ones.
        reusable_tokens=turn.cached_tokens + turn.recomputed_tokens,
        diverged_at=turn.diverged_at,
        error=turn.status if turn.status in _ENDS else None,
    )


def _make_tool_calls(policy: str, job: NamedJob) -> Iterator[ToolCallEvent]:
    """Make one call from each turn with calls to its agent's next, or to now: calls of one turn run side by side."""
    agents: dict[str | None, list[TurnView]] = {}
    for turn in job.view.turns:
        agents.setdefault(turn.thread, []).append(turn)
    gaps = [(before, after.arrived_s) for turns in agents.values() for before, after in pairwise(turns)]
    # Tools that one turn waits for are joined.
    out = set() if job.view.is_over else set("+".join(job.view.waits_for).split("+"))
    gaps += [(turns[-1], job.view.now_s) for turns in agents.values() if out.intersection(turns[-1].tools)]
    for before, until_s in gaps:
        if before.tools:
            yield ToolCallEvent(
                policy=policy,
                job=job.name,
                thread=before.thread and shorten_session(before.thread),
                turn=before.turn,
                tool=", ".join(before.tools),
                started_s=before.finished_s + job.offset_s,
                finished_s=max(before.finished_s, until_s) + job.offset_s,
            )


def _make_job(
    policy: str, job: NamedJob, status: Literal["finished", "failed", "interrupted"] | None = None
) -> JobEvent:
    view = job.view
    last = job.last
    return JobEvent(
        policy=policy,
        job=job.name,
        started_s=view.arrived_s + job.offset_s,
        finished_s=(last.finished_s if last else view.last_active_s) + job.offset_s,
        turns=view.turn_count,
        status=status or (_ENDS.get(last.status, "finished") if last else "interrupted"),
    )


def _shift(job: NamedJob, time_s: float | None) -> float | None:
    return None if time_s is None else time_s + job.offset_s


def _between(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else end_s - start_s
