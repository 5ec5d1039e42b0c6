from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tool_runtime.agent.job import Job, ToolCall, ToolResult, Turn
from tool_runtime.agent.recorded_tools import ExecutedCall, RecordedTools


class FakeSleep:
    """A clock that jumps to the end of the shortest sleep under way."""

    def __init__(self) -> None:
        self.now = 0.0
        self._wakes: list[float] = []

    async def __call__(self, seconds: float) -> None:
        wake = self.now + seconds
        self._wakes.append(wake)
        await asyncio.sleep(0)  # the other calls of the turn begin their sleeps
        while wake > min(self._wakes):
            await asyncio.sleep(0)
        self._wakes.remove(wake)
        self.now = wake


def look(arguments: str = "{}") -> ToolCall:
    return ToolCall("look", arguments)


def play(*turns: tuple[ToolResult, ...], calls: Sequence[Sequence[ToolCall]]) -> tuple[list[ExecutedCall], list[str]]:
    """Play turns of calls. Returns them, and the results' texts in the order in which they came."""
    sleep = FakeSleep()
    job = Job("job-0", (), turns=tuple(Turn("", (), results) for results in turns))
    tools = RecordedTools(job, clock=lambda: sleep.now, sleep=sleep)
    ended: list[str] = []

    async def run() -> list[ExecutedCall]:
        executed: list[ExecutedCall] = []
        for of_turn in calls:
            executed += await tools.run(of_turn, lambda each: ended.append(each.result.content))
        return executed

    return asyncio.run(run()), ended


def test_parallel_calls_get_their_results_whichever_ends_first() -> None:
    first = ToolResult("slow", 3.0), ToolResult("fast", 0.5), ToolResult("middle", 1.0)
    executed, ended = play(first, (ToolResult("later", 0.0),), calls=[[look()] * 3, [look()]])
    assert [each.result.content for each in executed] == ["slow", "fast", "middle", "later"]
    assert ended == ["fast", "middle", "slow", "later"]


def test_a_call_takes_the_recorded_time() -> None:
    executed, _ = play((ToolResult("a", 2.0),), (ToolResult("b", 0.25),), calls=[[look()], [look()]])
    assert [each.finished_s - each.started_s for each in executed] == [2.0, 0.25]


def test_recorded_errors_are_served_as_the_model_saw_them() -> None:
    failed = ToolResult("Error during execution: no such page", 0.0, "no such page")
    executed, _ = play((failed,), calls=[[look("no JSON")]])
    assert executed[0].result == failed


def test_a_call_beyond_the_recording_gets_an_error() -> None:
    executed, _ = play((ToolResult("only", 0.0),), calls=[[look(), look()]])
    missing = "the recording has no further tool result"
    assert [each.result.content for each in executed] == ["only", f"Error: {missing}"]
    assert [each.result.error for each in executed] == [None, missing]
