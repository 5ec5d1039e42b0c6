"""The order of a session's requests, those of its sub-agents among them, and the waits between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import StatisticsError, fmean, linear_regression

from workloads.agent_traces.trace_file import Request, SubAgent, Trace

_MS = 1000


@dataclass(frozen=True, slots=True)
class Step:
    """A request in the session's time. `agent` is 0 for the session itself, n for its n-th sub-agent."""

    request: Request
    agent: int
    start_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    """The time from a reply to the next request. `by_tool` says what was waited for: a tool, or else a human."""

    seconds: float
    by_tool: bool
    estimated: bool


def order_steps(trace: Trace) -> list[Step]:
    """Order all requests by the time they were sent. A job has one request at a time, so parallel agents take turns."""
    steps, agents = [], 0
    for entry in trace.requests:
        if isinstance(entry, SubAgent):
            agents += 1
            start_s = entry.t - (entry.duration_ms or 0) / _MS
            steps += [Step(request, agents, start_s + request.t) for request in entry.requests]
        else:
            steps.append(Step(entry, 0, entry.t))
    return sorted(steps, key=lambda step: step.start_s)


def measure_waits(steps: Sequence[Step]) -> list[Wait]:
    """Measure the wait after each step but the last."""
    reply_time = _fit_reply_time([step.request for step in steps])
    return [_measure_wait(before, after, reply_time) for before, after in pairwise(steps)]


def _measure_wait(before: Step, after: Step, reply_time: Callable[[Request], float]) -> Wait:
    reply, request = before.request, after.request
    # A stop that was not recorded is a tool use: such waits are as long as those after tool calls, not as a human's.
    by_tool = reply.stop in ("tool_use", "") or request.input_types == ["tool_result"]
    # After a reply whose time is not known, think_time starts at an earlier reply.
    if before.agent == after.agent and reply.api_time is not None and request.think_time is not None:
        return Wait(request.think_time, by_tool, estimated=False)
    took_s = reply_time(reply) if reply.api_time is None else reply.api_time
    return Wait(max(0.0, after.start_s - before.start_s - took_s), by_tool, estimated=reply.api_time is None)


def _fit_reply_time(requests: Sequence[Request]) -> Callable[[Request], float]:
    """Fit the seconds that a reply takes by its tokens: a line through the session's replies with a recorded time."""
    known = [(request.reply_tokens, request.api_time) for request in requests if request.api_time is not None]
    if not known:
        return lambda _request: 0.0
    tokens, seconds = zip(*known, strict=True)
    try:
        slope, intercept = linear_regression(tokens, seconds)
    except StatisticsError:  # one reply, or all of one size
        slope, intercept = 0.0, fmean(seconds)
    return lambda request: max(0.0, intercept + slope * request.reply_tokens)
