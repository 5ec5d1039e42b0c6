"""What one policy's run left behind: its events, sorted by kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from agentcache.report.events import Event, JobEvent, PolicyEvent, RequestEvent, ToolCallEvent


@dataclass(slots=True)
class PolicyRun:
    """Events of one policy in the order written. `end` is None when the run broke before the policy ended."""

    requests: list[RequestEvent] = field(default_factory=list)
    tool_calls: list[ToolCallEvent] = field(default_factory=list)
    jobs: list[JobEvent] = field(default_factory=list)
    end: PolicyEvent | None = None

    @property
    def answered(self) -> list[RequestEvent]:
        """Requests without error."""
        return [request for request in self.requests if request.error is None]

    @property
    def finished_jobs(self) -> list[JobEvent]:
        """Return the jobs that finished."""
        return [job for job in self.jobs if job.status == "finished"]

    @property
    def open_jobs(self) -> list[str]:
        """Jobs that began and have no JobEvent, because the run broke."""
        ended = {job.job for job in self.jobs}
        begun = [request.job for request in self.requests] + [call.job for call in self.tool_calls]
        return [job for job in dict.fromkeys(begun) if job not in ended]

    def add(self, event: Event) -> None:
        """Add an event to those of its kind."""
        match event:
            case RequestEvent():
                self.requests.append(event)
            case ToolCallEvent():
                self.tool_calls.append(event)
            case JobEvent():
                self.jobs.append(event)
            case PolicyEvent():
                self.end = event


def group_by_policy(events: Iterable[Event]) -> dict[str, PolicyRun]:
    """Group events by policy, in the order in which the policies' first events were written."""
    runs: dict[str, PolicyRun] = {}
    for event in events:
        runs.setdefault(event.policy, PolicyRun()).add(event)
    return runs
