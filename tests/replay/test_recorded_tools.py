from __future__ import annotations

import asyncio
from collections.abc import Sequence

from made_job import make_job, make_turn

from agentcache.replay.lane_waits import recorded_tools
from tool_runtime.agent.executor import ExecutedCall, ToolExecutor
from tool_runtime.agent.job import Job, ToolCall, ToolResult, Turn


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


def execute(job: Job, *turns: Sequence[ToolCall]) -> tuple[list[ExecutedCall], list[str]]:
    """Results of all calls, and the results' texts in the order in which they came."""
    sleep = FakeSleep()
    executor = ToolExecutor(recorded_tools(job, sleep), timeout_s=3600.0, clock=lambda: sleep.now)
    ended: list[str] = []

    async def run() -> list[ExecutedCall]:
        executed: list[ExecutedCall] = []
        for calls in turns:
            executed += await executor.run(calls, on_end=lambda each: ended.append(each.result.content))
        return executed

    return asyncio.run(run()), ended


def look(at: str = "x") -> ToolCall:
    return ToolCall("look", f'{{"at": "{at}"}}')


def contents(executed: Sequence[ExecutedCall]) -> list[str]:
    return [each.result.content for each in executed]


def test_parallel_calls_get_their_results_whichever_ends_first() -> None:
    results = (ToolResult("slow", 3.0), ToolResult("fast", 0.5), ToolResult("middle", 1.0))
    job = make_job("job-0", Turn("", (look(), look(), look()), results), make_turn("later"), make_turn())
    executed, ended = execute(job, job.turns[0].tool_calls, job.turns[1].tool_calls)
    assert contents(executed) == ["slow", "fast", "middle", "later"]
    assert ended == ["fast", "middle", "slow", "later"]


def test_a_call_takes_the_recorded_time() -> None:
    job = make_job("job-0", make_turn("a", seconds=2.0), make_turn("b", seconds=0.25), make_turn())
    executed, _ = execute(job, [look()], [look()])
    durations = [each.finished_s - each.started_s for each in executed]
    assert durations == [2.0, 0.25]


def test_recorded_errors_are_served_as_the_model_saw_them() -> None:
    failed = ToolResult("Error during execution: no such page", 0.0, "no such page")
    job = make_job("job-0", Turn("", (look(),), (failed,)), make_turn())
    executed, _ = execute(job, [look()])
    assert contents(executed) == ["Error during execution: no such page"]


def test_a_call_beyond_the_recording_gets_an_error() -> None:
    job = make_job("job-0", make_turn("only"), make_turn())
    executed, _ = execute(job, [look(), look()])
    assert contents(executed) == ["only", "Error during execution: the recording has no further tool result"]
    assert [each.result.error for each in executed] == [None, "the recording has no further tool result"]


def test_each_job_has_a_recording_of_its_own() -> None:
    job = make_job()
    assert contents(execute(job, [look()])[0]) == contents(execute(job, [look()])[0]) == ["nothing here"]


def test_the_tools_are_the_jobs_own() -> None:
    job = make_job()
    assert recorded_tools(job).as_openai() == job.tools


def test_a_recorded_call_of_an_unknown_tool_keeps_its_result() -> None:
    calls = (ToolCall("invented", "{}"), look("shelf"))
    results = (
        ToolResult("Error during execution: invented is not defined", 0.0, "not defined"),
        ToolResult("tea", 0.0),
    )
    job = make_job("job-0", Turn("", calls, results), make_turn())
    executed, _ = execute(job, calls)
    assert contents(executed) == ["Error during execution: invented is not defined", "tea"]
