"""Describes what a job took; once it is over, that is the one record that all tell of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from pydantic import with_config

from agentcache.engine.waits import WaitReason
from tool_runtime.learning.job_entry import AgentState, JobEntry


@with_config(extra="forbid")
@dataclass(slots=True, kw_only=True)
class AgentView:
    """A sub-agent of a job; one that the main agent has begun has no parent."""

    name: str
    parent: str | None
    began_s: float
    turns: int
    state: AgentState


@with_config(extra="forbid")
@dataclass(slots=True, kw_only=True)
class JobSummary:
    """What all requests of a job come to, as docs/job-log.md has it. Names and ids in it are the client's."""

    version: int = 1
    cause: str | None = None
    started_at: str = ""
    finished_at: str = ""
    ended_at: str = ""
    latency_s: float = 0.0
    ttft_mean_s: float | None = None
    ttft_max_s: float | None = None
    requests: int = 0
    first_tokens: int = 0
    turns: int = 0
    tool_calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cached_by_place: dict[str, int] = field(default_factory=dict)
    computed_tokens: int = 0
    output_tokens: int = 0
    left_tokens: dict[str, int] = field(default_factory=dict)
    waits_s: dict[WaitReason, float] = field(default_factory=dict)
    gpu_s: float = 0.0
    request_ids: list[str] = field(default_factory=list)
    threads: list[str] = field(default_factory=list)
    parents: list[str | None] = field(default_factory=list)
    tenant: str | None = None

    def end(self, entry: JobEntry, cause: str, finished_s: float, now_s: float, time_s: float) -> None:
        """End at `now_s`, which is `time_s` seconds since 1970; the last reply was complete at `finished_s`."""

        def tell(at_s: float) -> str:
            return datetime.fromtimestamp(time_s - now_s + at_s, UTC).isoformat(timespec="milliseconds")

        self.cause, self.turns, self.tool_calls = cause, entry.turns, entry.calls
        self.started_at, self.finished_at, self.ended_at = map(tell, (entry.arrival_s, finished_s, now_s))
        self.latency_s = finished_s - entry.arrival_s
