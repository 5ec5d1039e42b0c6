"""Plays the tool calls of a turn side by side: each takes its recorded time, and gives its recorded result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from tool_runtime.agent.job import Job, ToolCall, ToolResult

Sleep = Callable[[float], Awaitable[None]]

_NO_MORE = "the recording has no further tool result"


@dataclass(frozen=True, slots=True)
class ExecutedCall:
    """A call, its result, and when it ran, in seconds on the clock of who ran it."""

    call: ToolCall
    result: ToolResult
    started_s: float
    finished_s: float


class RecordedTools:
    """The results of one job, given out in the order in which its calls start, which is that of the recording.

    What a call asks for is not looked at: a model may have called a tool that it was not offered, or written no JSON,
    and was told so in the result.
    """

    def __init__(self, job: Job, *, clock: Callable[[], float], sleep: Sleep = asyncio.sleep) -> None:
        self._results = chain.from_iterable(turn.results for turn in job.turns)
        self._clock = clock
        self._sleep = sleep

    async def run(self, calls: Sequence[ToolCall], on_end: Callable[[ExecutedCall], None]) -> list[ExecutedCall]:
        """Play calls and return results in their order; `on_end` hears of each as it ends."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._play(call, on_end)) for call in calls]
        return [task.result() for task in tasks]

    async def _play(self, call: ToolCall, on_end: Callable[[ExecutedCall], None]) -> ExecutedCall:
        # Before the first wait: calls of one turn start in order, whichever ends first.
        result = next(self._results, ToolResult(f"Error: {_NO_MORE}", 0.0, _NO_MORE))
        started_s = self._clock()
        await self._sleep(result.duration_s)
        executed = ExecutedCall(call, result, started_s, self._clock())
        on_end(executed)
        return executed
