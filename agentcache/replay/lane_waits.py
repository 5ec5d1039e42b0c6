"""Runs tools that take their recorded time, and shortens waits of a closed loop's lanes where all lanes wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from tool_runtime.agent.executor import Tool, ToolRegistry
from tool_runtime.agent.job import Job, ToolResult

Sleep = Callable[[float], Awaitable[None]]


def recorded_tools(job: Job, sleep: Sleep = asyncio.sleep) -> ToolRegistry:
    """Make the tools. Results are given out in the order in which calls start, which is that of the recording."""
    results = chain.from_iterable(turn.results for turn in job.turns)

    async def answer(**_arguments: Any) -> str:
        # Take it before the first wait: calls of one turn start in order, whichever ends first.
        result: ToolResult | None = next(results, None)
        if result is None:
            raise LookupError("the recording has no further tool result")
        await sleep(result.duration_s)
        return result.content

    registry = ToolRegistry()
    for tool in job.tools:
        registry.add(_as_tool(tool["function"], answer))
    # A model may have called a tool it was not offered; its recorded result, an error text, is returned like others.
    for name in {call.name for turn in job.turns for call in turn.tool_calls}.difference(registry.names):
        registry.add(Tool(name, "", {"type": "object"}, answer))
    return registry


def _as_tool(function: Mapping[str, Any], answer: Callable[..., Awaitable[str]]) -> Tool:
    return Tool(function["name"], function.get("description", ""), function["parameters"], answer)


@dataclass(slots=True, eq=False)
class _Wait:
    session: str
    due_s: float
    moved: asyncio.Event = field(default_factory=asyncio.Event)


class LaneWaits:
    """Waits that are brought forward alike while no lane has a request under way, so that one ends within `most_s`."""

    def __init__(self, lanes: int, clock: Callable[[], float], most_s: float) -> None:
        self._lanes = lanes
        self._clock = clock
        self._most_s = most_s
        self._waits: list[_Wait] = []

    def of(self, session: str) -> Sleep:
        """Return the way to wait for so many seconds of a lane that has this session now."""
        return partial(self._wait, session)

    def count(self, more: int) -> None:
        """Count on so many more lanes, or on fewer: one takes no other session, or an agent of it waits for others."""
        self._lanes += more
        self._bring_forward()

    async def _wait(self, session: str, seconds: float) -> None:
        wait = _Wait(session, self._clock() + seconds)
        self._waits.append(wait)
        self._bring_forward()
        try:
            while (left_s := wait.due_s - self._clock()) > 0:
                wait.moved.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(wait.moved.wait(), left_s)
        finally:
            self._waits.remove(wait)
            # Other tools of the same turn may go on.
            self._bring_forward()

    def _bring_forward(self) -> None:
        if not self._waits or len({wait.session for wait in self._waits}) < self._lanes:
            return
        excess_s = min(wait.due_s for wait in self._waits) - self._clock() - self._most_s
        if excess_s > 0:
            for wait in self._waits:
                wait.due_s -= excess_s
                wait.moved.set()
