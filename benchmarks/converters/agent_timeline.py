"""Measures a recorded agent session: how long replies took, what followed them when, who waited for whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import StatisticsError, fmean, linear_regression

from converters.agent_trace_file import Request, SubAgent, Trace

# Times of a session's own requests are whole seconds, those of its sub-agents are not.
_ROUNDED_S = 1.0


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


@dataclass(frozen=True, slots=True)
class TimedAgent:
    """The requests of an agent: how long each reply took, and the wait after each but the last.

    A sub-agent began `delay_s` after request `behind` of the session, -1 for none, which then waited for it or not.
    The session's waits behind such requests begin when the sub-agents had ended.
    """

    number: int
    steps: Sequence[Step]
    took_s: Sequence[float]
    waits: Sequence[Wait]
    behind: int = -1
    delay_s: float = 0.0
    is_awaited: bool = False


def order_steps(trace: Trace) -> list[Step]:
    """Order all requests by the time they were sent."""
    steps, agents = [], 0
    for entry in trace.requests:
        if isinstance(entry, SubAgent):
            agents += 1
            # They cannot come before it began: then their times count from there.
            apart = any(request.t < entry.start_s for request in entry.requests)
            steps += [Step(each, agents, each.t + entry.start_s * apart) for each in entry.requests]
        else:
            steps.append(Step(entry, 0, entry.t))
    return sorted(steps, key=lambda step: step.start_s)


def measure_agents(trace: Trace, steps: Sequence[Step]) -> list[TimedAgent]:
    """Measure the agents of these steps, the session itself first, whether it has any or not."""
    reply_time = _fit_reply_time([step.request for step in steps])
    by_agent: dict[int, list[Step]] = {0: []}
    for step in steps:
        by_agent.setdefault(step.agent, []).append(step)
    main, *others = (_measure_agent(number, own, reply_time) for number, own in by_agent.items())
    entries = [entry for entry in trace.requests if isinstance(entry, SubAgent)]
    agents = [_find_beginning(agent, entries[agent.number - 1], main) for agent in others]
    return [_shorten_waits(main, agents), *agents]


def _measure_agent(number: int, steps: Sequence[Step], reply_time: Callable[[Request], float]) -> TimedAgent:
    took_s = [reply_time(each.request) if each.request.api_time is None else each.request.api_time for each in steps]
    waits = [_measure_wait(before, after, took) for (before, after), took in zip(pairwise(steps), took_s, strict=False)]
    return TimedAgent(number, steps, took_s, waits)


def _find_beginning(agent: TimedAgent, entry: SubAgent, main: TimedAgent) -> TimedAgent:
    """Find the session's latest request whose reply had come when the agent began."""
    begin_s = agent.steps[0].start_s
    ends_s = [step.start_s + took for step, took in zip(main.steps, main.took_s, strict=True)]
    behind = sum(end_s <= begin_s + _ROUNDED_S for end_s in ends_s) - 1
    if behind < 0:
        return replace(agent, delay_s=begin_s)
    is_awaited = (
        entry.duration_ms is not None
        and behind + 1 < len(main.steps)
        and main.steps[behind + 1].start_s >= _end_s(agent) - _ROUNDED_S
    )
    return replace(agent, behind=behind, delay_s=max(0.0, begin_s - ends_s[behind]), is_awaited=is_awaited)


def _end_s(agent: TimedAgent) -> float:
    return agent.steps[-1].start_s + agent.took_s[-1]


def _shorten_waits(main: TimedAgent, agents: Sequence[TimedAgent]) -> TimedAgent:
    """Take from the session's waits what it waited for sub-agents."""
    waits = list(main.waits)
    for agent in agents:
        if agent.is_awaited:
            left_s = max(0.0, main.steps[agent.behind + 1].start_s - _end_s(agent))
            waits[agent.behind] = replace(waits[agent.behind], seconds=min(waits[agent.behind].seconds, left_s))
    return replace(main, waits=waits)


def _measure_wait(before: Step, after: Step, took_s: float) -> Wait:
    reply, request = before.request, after.request
    # A stop that was not recorded is a tool use: such waits are as long as those after tool calls, not as a human's.
    by_tool = reply.stop in ("tool_use", "") or request.input_types == ["tool_result"]
    # After a reply whose time is not known, think_time starts at an earlier reply.
    if reply.api_time is not None and request.think_time is not None:
        return Wait(request.think_time, by_tool)
    return Wait(max(0.0, after.start_s - before.start_s - took_s), by_tool)


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
