"""What front ends ask the engine core of jobs, by vLLM's utility calls."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

from vllm.v1.engine.core import EngineCoreProc

from agentcache.engine.constants import JOB_METHOD, JOBS_METHOD, RELEASE_METHOD
from agentcache.engine.job_tracker import JobTracker
from agentcache.engine.scheduler import AgentScheduler


def answer_job_calls() -> None:
    """Let front ends call these methods of every engine core. May be called again."""
    setattr(EngineCoreProc, JOB_METHOD, _view_session)
    setattr(EngineCoreProc, JOBS_METHOD, _view_latest)
    setattr(EngineCoreProc, RELEASE_METHOD, _release)


def _view_session(core: EngineCoreProc, session: str) -> list[dict[str, Any]] | None:
    """The jobs of a session, one a tenant. None, as of all of these, when the policy follows no jobs."""
    tracker = _find_tracker(core)
    return None if tracker is None else [view.model_dump(mode="json") for view in tracker.view_session(session)]


def _view_latest(core: EngineCoreProc, limit: int) -> list[dict[str, Any]] | None:
    """Jobs that are known and jobs that ended, the latest of each kind first."""
    tracker = _find_tracker(core)
    if tracker is None:
        return None
    views = islice(chain(tracker.view_jobs(), tracker.view_ended()), limit)
    return [view.model_dump(mode="json") for view in views]


def _release(core: EngineCoreProc, session: str, tenants: list[str | None] | None) -> bool | None:
    """The session's jobs are over, all or those of these tenants; whether there was any."""
    tracker = _find_tracker(core)
    return None if tracker is None else tracker.release(session, tenants)


def _find_tracker(core: EngineCoreProc) -> JobTracker | None:
    return core.scheduler.tracker if isinstance(core.scheduler, AgentScheduler) else None
