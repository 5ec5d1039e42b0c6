"""What front ends ask the engine core of jobs, by vLLM's utility calls."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import Any

from agentcache.engine.constants import EXPIRED_METHOD, JOB_METHOD, JOBS_METHOD, RELEASE_METHOD
from agentcache.engine.jobs.tracker import JobTracker
from agentcache.engine.jobs.views import JobView
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.vllm.engine import EngineCoreProc
from agentcache.engine.vllm.patches import replace


def answer_job_calls() -> None:
    """Let front ends call these methods of every engine core. May be called again."""
    replace(EngineCoreProc, JOB_METHOD, _view_session)
    replace(EngineCoreProc, JOBS_METHOD, _view_latest)
    replace(EngineCoreProc, RELEASE_METHOD, _release)
    replace(EngineCoreProc, EXPIRED_METHOD, _take_expired)


def _view_session(core: EngineCoreProc, session: str, tenants: list[str | None] | None) -> list[dict[str, Any]] | None:
    """View the jobs of a session, one a tenant, all or those of these tenants, given by their cache salts.

    None, as of all methods here, when the policy follows no jobs.
    """
    tracker = _find_tracker(core)
    if tracker is None:
        return None
    return tracker.stats_guard.ask(list[dict[str, Any]](), lambda: _dump(tracker.view_session(session, tenants)))


def _view_latest(core: EngineCoreProc, first: int, jobs: int, turns: int) -> list[dict[str, Any]] | None:
    """View jobs that are known and jobs that ended, the latest of each kind first: from the `first` on so many.

    Each has its latest `turns`. The engine waits meanwhile: 1,000 turns take about 10 ms.
    """
    tracker = _find_tracker(core)
    if tracker is None:
        return None
    return tracker.stats_guard.ask(
        list[dict[str, Any]](),
        lambda: _dump(islice(chain(tracker.view_jobs(turns), tracker.view_ended(turns)), first, first + jobs)),
    )


def _dump(views: Iterable[JobView]) -> list[dict[str, Any]]:
    return [view.model_dump(mode="json") for view in views]


def _release(core: EngineCoreProc, session: str, tenants: list[str | None] | None) -> list[str | None] | None:
    """End the session's jobs, all or those of these tenants; return how their clients name the session of each."""
    tracker = _find_tracker(core)
    return None if tracker is None else tracker.release(session, tenants)


def _take_expired(core: EngineCoreProc) -> list[str | None] | None:
    """Return the sessions that were idle for too long, as the tracker does; each once, so one front end may ask."""
    tracker = _find_tracker(core)
    return None if tracker is None else tracker.take_expired()


def _find_tracker(core: EngineCoreProc) -> JobTracker | None:
    return core.scheduler.tracker if isinstance(core.scheduler, AgentScheduler) else None
