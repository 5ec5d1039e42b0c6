"""Turns and jobs made up for tests of what is counted of them."""

from __future__ import annotations

from typing import Literal

from agentcache.engine.observe.stats import JobStats
from agentcache.engine.views import TurnView
from tool_runtime.learning.job_entry import Departed, Departure, JobEntry


def make_turn(
    turn: int = 0,
    finished_s: float = 12.0,
    hit: int = 0,
    lost: int = 0,
    *,
    arrived_s: float = 10.0,
    tools: tuple[str, ...] = ("bash",),
    status: Literal["finished", "cut off", "aborted", "failed"] = "finished",
) -> TurnView:
    return TurnView(
        turn=turn,
        arrived_s=arrived_s,
        scheduled_s=10.5,
        first_token_s=11.0,
        finished_s=finished_s,
        prompt_tokens=100,
        cached_tokens=hit,
        recomputed_tokens=lost,
        output_tokens=7,
        tools=tools,
        diverged_at=None,
        status=status,
    )


def make_entry(session: str = "job", turns: int = 1, **fields: object) -> JobEntry:
    return JobEntry(session, 10.0, 20.0, 1, **{"client_session": session, "turns": turns, **fields})  # type: ignore[arg-type]


def end(log: JobStats, entry: JobEntry, cause: Departure = Departure.ENDED) -> None:
    log.end(Departed(entry, cause, ()), 50.0)
