"""The methods that an engine core with our scheduler has for front ends, beside vLLM's own; those of jobs are here."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import Any

from agentcache.engine.constants import EXPIRED_METHOD, JOB_METHOD, JOBS_METHOD, RELEASE_METHOD
from agentcache.engine.jobs.tracker import JobTracker
from agentcache.engine.observe.snapshot import SNAPSHOT_METHOD, snapshot_core
from agentcache.engine.observe.views import JobView
from agentcache.engine.rpc.policy_switch import USE_POLICY_METHOD, read_and_use
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.vllm.engine import EngineCoreProc
from agentcache.engine.vllm.patches import replace


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


def _release(
    core: EngineCoreProc, session: str, tenants: list[str | None] | None, rank: int | None = None
) -> list[str | None] | None:
    """End the session's jobs, all or those of these tenants; return how their clients name the session of each.

    `rank` names the one engine that is meant, None all.
    """
    tracker = _find_tracker(core) if rank is None or rank == core.engine_index else None
    return None if tracker is None else tracker.release(session, tenants)


def _take_expired(core: EngineCoreProc) -> list[str | None] | None:
    """Return the sessions that were idle for too long, as the tracker does; each once, so one front end may ask."""
    tracker = _find_tracker(core)
    return None if tracker is None else tracker.take_expired()


def _find_tracker(core: EngineCoreProc) -> JobTracker | None:
    return core.scheduler.tracker if isinstance(core.scheduler, AgentScheduler) else None
