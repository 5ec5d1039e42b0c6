"""The methods that an engine core with our scheduler has for front ends, beside vLLM's own; those of jobs are here."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict
from itertools import chain, islice
from typing import Any

from agentcache.engine.blocks.pins import PinEnd
from agentcache.engine.constants import EXPIRED_METHOD, JOB_METHOD, JOBS_METHOD, RELEASE_METHOD
from agentcache.engine.jobs.tracker import JobTracker
from agentcache.engine.marks import shorten
from agentcache.engine.rpc.job_views import MAX_JOBS_AT_ONCE, view_ended, view_jobs, view_session
from agentcache.engine.rpc.policy_switch import USE_POLICY_METHOD, read_and_use
from agentcache.engine.rpc.snapshot import SNAPSHOT_METHOD, snapshot_core
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.views import JobView
from agentcache.engine.vllm.engine import EngineCoreProc
from agentcache.engine.vllm.patches import replace
from tool_runtime.learning.job_table import MAX_EXPIRED


def answer_front_ends() -> None:
    """Let front ends call our methods of every engine core, by vLLM's utility calls. May be called again."""
    calls = {
        SNAPSHOT_METHOD: snapshot_core,
        USE_POLICY_METHOD: read_and_use,
        JOB_METHOD: _view_session,
        JOBS_METHOD: _view_latest,
        RELEASE_METHOD: _release,
        EXPIRED_METHOD: _take_expired,
    }
    for method, call in calls.items():
        replace(EngineCoreProc, method, call)


def _view_session(core: EngineCoreProc, session: str, tenants: list[str | None] | None) -> list[dict[str, Any]] | None:
    """View the jobs of a session, one a tenant, all or those of these tenants, given by their cache salts.

    Those that are over follow, and have a summary. None, as of all methods here, when the policy follows no jobs.
    """
    tracker = _find_tracker(core)
    if tracker is None:
        return None

    def view() -> list[dict[str, Any]]:
        return _dump(view_session(tracker, session, tenants, with_ended=True))

    return tracker.stats_guard.ask([], view)


def _view_latest(core: EngineCoreProc, first: int, jobs: int, turns: int) -> list[dict[str, Any]] | None:
    """View jobs that are known and jobs that ended, the latest of each kind first: from the `first` on so many.

    Each has its latest `turns`. The engine waits meanwhile: 1,000 turns take about 10 ms.
    """
    tracker = _find_tracker(core)
    if tracker is None:
        return None

    def view() -> list[dict[str, Any]]:
        views = chain(view_jobs(tracker, turns), view_ended(tracker.stats, tracker.clock(), turns))
        return _dump(islice(views, first, first + jobs))

    return tracker.stats_guard.ask([], view)


def _dump(views: Iterable[JobView]) -> list[dict[str, Any]]:
    return [view.model_dump(mode="json") for view in views]


def _release(
    core: EngineCoreProc, session: str, tenants: list[str | None] | None, rank: int | None = None
) -> dict[str, Any] | None:
    """End the session's jobs, all or those of these tenants. `rank` names the one engine that is meant, None all.

    Returns:
        `sessions`, how their clients name the session of each, and `ended`, the summaries of those that ran no more.
    """
    tracker = _find_tracker(core) if rank is None or rank == core.engine_index else None
    if tracker is None:
        return None
    numbers = {entry.number for entry in tracker.finder.find_jobs(session, tenants)}
    sessions = release(tracker, session, tenants)
    ended = [asdict(record.summary) for record, entry in tracker.stats.ended if entry.number in numbers]
    return {"sessions": sessions, "ended": [{"engine": core.engine_index, **job} for job in ended]}


def release(tracker: JobTracker, session: str, tenants: Collection[str | None] | None = None) -> list[str | None]:
    """End the session's jobs, one a tenant, or those of these tenants, up to 256 a call.

    Returns:
        Of each the session as its client names it, None where it names none; empty if there are no jobs.
    """
    # Those that end when nothing of them runs any more come last: another call ends more.
    found = sorted(tracker.finder.find_jobs(session, tenants), key=lambda entry: entry.is_final)
    jobs = found[:MAX_JOBS_AT_ONCE]
    named = {entry.session for entry in tracker.runtime.jobs.find(session)}
    names = [
        session
        if entry.session in named or shorten(session) in entry.agents
        else tracker.stats_guard.ask(None, tracker.stats.session_of, entry.session)
        for entry in jobs
    ]
    for entry in jobs:
        if entry.session not in named and (agent := entry.agents.get(shorten(session))) is not None:
            # A sub-agent is over, and not its family's job.
            tracker.families.end(entry, agent)
            continue
        if tracker.pins is not None:
            tracker.pins.end_all(PinEnd.RELEASED, entry.session)
        tracker.changes_guard.tell(tracker.changes.forget, tuple(entry.pending))
        tracker.runtime.jobs.end(entry.session)
    tracker.end_departed()
    return names


def _take_expired(core: EngineCoreProc) -> list[str | None] | None:
    tracker = _find_tracker(core)
    return None if tracker is None else take_expired(tracker)


def take_expired(tracker: JobTracker) -> list[str | None]:
    """Return the sessions that were idle for too long, of those that ended since the last call: one front end may ask.

    None stands for those that have no name, or are back. More may be over by now unless the list is empty.
    """
    # An engine core without requests takes no steps.
    tracker.end_departed(MAX_EXPIRED)
    find, expired = tracker.runtime.jobs.find, tracker.stats_guard.ask([], tracker.stats.take_expired)
    return [None if session is None or find(session) else session for session in expired]


def _find_tracker(core: EngineCoreProc) -> JobTracker | None:
    return core.scheduler.tracker if isinstance(core.scheduler, AgentScheduler) else None
