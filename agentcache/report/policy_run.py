"""Sorts the events of one policy's run by their kind."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
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
        """Requests without error; of a closed loop, those whose reply was complete within the measured time."""
        begin_s, end_s = self.end.window_s if self.end and self.end.window_s else (-math.inf, math.inf)
        return [each for each in self.requests if each.error is None and begin_s <= each.finished_s <= end_s]

    @property
    def finished_jobs(self) -> list[JobEvent]:
        """Return the jobs that finished; none of a closed loop, where policies do not finish the same ones."""
        if self.end is not None and self.end.window_s is not None:
            return []
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


def put_stock_first(policies: Mapping[str, PolicyRun]) -> dict[str, PolicyRun]:
    """Put `vllm`, or of several runs the first of a "FOLDER: vllm", before all others: they are compared with it."""
    stock = next((name for name in policies if name.rpartition(": ")[2] == "vllm"), None)
    return dict(policies) if stock is None else {stock: policies[stock], **policies}


def find_working_set(requests: Collection[RequestEvent], jobs: Iterable[JobEvent]) -> int:
    """Return the most tokens that contexts of agents under way came to at once; what they share counts for each."""
    changes = [
        (each.sent_s, (each.job, each.thread or ""), each.prompt_tokens + each.output_tokens) for each in requests
    ]
    last_s = {(each.job, each.thread): each.finished_s for each in sorted(requests, key=lambda one: one.finished_s)}
    changes += [(end_s, (job, thread), 0) for (job, thread), end_s in last_s.items() if thread]
    changes += [(each.finished_s, (each.job, ""), 0) for each in jobs]
    contexts: dict[tuple[str, str], int] = {}
    held = most = 0
    for _, agent, tokens in sorted(changes):
        held += tokens - contexts.get(agent, 0)
        contexts[agent] = tokens
        most = max(most, held)
    return most
