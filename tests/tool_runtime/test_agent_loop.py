from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import httpx2
import pytest
from fake_vllm import FakeClock, FakeVllm, calls, says

from tool_runtime.agent.agent_loop import AgentLoop, JobOutcome
from tool_runtime.agent.job import Job, Message, ToolCall, ToolResult, Turn
from tool_runtime.agent.model_client import ModelClient, RequestOutcome
from tool_runtime.agent.recorded_tools import ExecutedCall, RecordedTools, Sleep

QUESTION = {"role": "user", "content": "What is 1 + 2, plus 3?"}


class Record:
    """Keeps what the observer is told, in order."""

    def __init__(self) -> None:
        self.requests: list[RequestOutcome] = []
        self.tool_calls: list[tuple[str, int, ExecutedCall]] = []
        self.order: list[str] = []

    def request_ended(self, outcome: RequestOutcome) -> None:
        self.requests.append(outcome)
        self.order.append(f"request {outcome.turn}")

    def tool_call_ended(self, job_id: str, turn: int, executed: ExecutedCall) -> None:
        self.tool_calls.append((job_id, turn, executed))
        self.order.append(f"{executed.call.name} {turn}")


TOOLS = ({"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}},)


def gives(*results: ToolResult, pause_s: float = 0.0, said: tuple[Message, ...] = ()) -> Turn:
    """A recorded turn behind which these results came; the reply itself is the server's."""
    return Turn("", (), results, pause_s, said)


def loop_on(
    server: FakeVllm,
    job: Job,
    *,
    clock: FakeClock | None = None,
    observer: Record | None = None,
    request_options: Callable[[int], Mapping[str, Any]] = lambda _: {},
    sleep: Sleep | None = None,
    max_retries: int = 2,
) -> AgentLoop:
    clock = clock or FakeClock()
    return AgentLoop(
        ModelClient(server.client(), "m", clock=clock, sleep=clock.sleep, max_retries=max_retries),
        RecordedTools(job, clock=clock, sleep=sleep or clock.sleep),
        observer=observer or Record(),
        request_options=request_options,
        sleep=clock.sleep,
    )


def run(server: FakeVllm, *turns: Turn, tools: tuple[Mapping[str, Any], ...] = TOOLS, **settings: Any) -> JobOutcome:
    """Play a recording of these turns and an answer."""
    job = Job("job-7", (QUESTION,), tools, (*turns, Turn("the answer")))
    return asyncio.run(loop_on(server, job, **settings).run(job))


def test_a_job_of_several_turns_runs_to_its_answer() -> None:
    server = FakeVllm(
        calls(("c1", "add", '{"a":1,  "b":2}'), content="\n\nLet me see. "),
        calls(("c2", "add", '{"a": 3, "b": 3}')),
        says("Six."),
    )
    three, six = ToolResult("3", 0.0), ToolResult("6", 0.0)
    outcome = run(server, gives(three), gives(six))
    assert (outcome.job_id, outcome.status, outcome.error) == ("job-7", "finished", None)
    assert outcome.turns == (
        Turn("\n\nLet me see. ", (ToolCall("add", '{"a":1,  "b":2}', "c1"),), (three,)),
        Turn("", (ToolCall("add", '{"a": 3, "b": 3}', "c2"),), (six,)),
        Turn("Six."),
    )


def test_the_history_is_what_was_received() -> None:
    server = FakeVllm(
        calls(("c1", "add", '{"a":1,  "b":2}'), content="\n\nLet me see. "),
        calls(("c2", "add", "not json"), ("c3", "add", '{"a": "é", "b": "\\u00e9"}')),
        says("Six."),
    )
    run(server, gives(ToolResult("3", 0.0)), gives(ToolResult("no JSON", 0.0), ToolResult("éé", 0.0)))

    def call(id_: str, arguments: str) -> dict[str, Any]:
        return {"id": id_, "type": "function", "function": {"name": "add", "arguments": arguments}}

    first = {"role": "assistant", "content": "\n\nLet me see. ", "tool_calls": [call("c1", '{"a":1,  "b":2}')]}
    both = [call("c2", "not json"), call("c3", '{"a": "é", "b": "\\u00e9"}')]
    second = {"role": "assistant", "content": None, "tool_calls": both}
    results = [("c2", "no JSON"), ("c3", "éé")]
    histories = [body["messages"] for body in server.bodies]
    assert histories[0] == [QUESTION]
    assert histories[1] == [QUESTION, first, {"role": "tool", "tool_call_id": "c1", "content": "3"}]
    assert histories[2][:4] == [*histories[1], second]
    assert [(message["tool_call_id"], message["content"]) for message in histories[2][4:]] == results


def test_a_request_carries_tools_session_and_its_turn_s_options() -> None:
    server = FakeVllm(calls(("c1", "add", '{"a": 1, "b": 2}')), says("3"))
    options = {"max_tokens": 16, "return_token_ids": True}
    run(server, gives(ToolResult("3", 0.0)), request_options=lambda turn: {**options, "seed": turn})
    assert [body["tools"] for body in server.bodies] == [list(TOOLS)] * 2
    assert [body["session_id"] for body in server.bodies] == ["job-7", "job-7"]
    assert [(body["max_tokens"], body["return_token_ids"], body["seed"]) for body in server.bodies] == [
        (16, True, 0),
        (16, True, 1),
    ]


def test_a_job_without_tools_sends_none() -> None:
    server = FakeVllm(says("hello"))
    assert run(server, tools=()).turns == (Turn("hello"),)
    assert "tools" not in server.bodies[0]


def test_the_observer_hears_of_each_thing_as_it_ends() -> None:
    record = Record()
    waits = {2.0: asyncio.Event(), 1.0: asyncio.Event()}
    waits[1.0].set()

    async def sleep(seconds: float) -> None:
        await waits[seconds].wait()
        if seconds == 1.0:
            asyncio.get_running_loop().call_soon(waits[2.0].set)

    server = FakeVllm(calls(("c1", "first", "{}"), ("c2", "second", "{}")), says("done"))
    results = ToolResult("1", 2.0), ToolResult("", 1.0, "broken")
    run(server, gives(*results), observer=record, sleep=sleep)
    assert record.order == ["request 0", "second 0", "first 0", "request 1"]
    assert [(job, turn, executed.result.error) for job, turn, executed in record.tool_calls] == [
        ("job-7", 0, "broken"),
        ("job-7", 0, None),
    ]
    assert [(request.job_id, request.reply.finish_reason) for request in record.requests] == [
        ("job-7", "tool_calls"),
        ("job-7", "stop"),
    ]


def test_the_job_lasts_from_its_first_request_to_its_last_reply() -> None:
    clock = FakeClock()
    clock.advance(10.0)
    server = FakeVllm(
        [lambda: clock.advance(1.0), *calls(("c1", "work", "{}"))],
        [lambda: clock.advance(2.0), *says("done")],
    )
    outcome = run(server, gives(ToolResult("", 5.0)), clock=clock)
    assert (outcome.started_s, outcome.finished_s) == (10.0, 18.0)


def test_calls_behind_the_last_recorded_turn_are_not_played() -> None:
    record = Record()
    server = FakeVllm(*[calls((f"c{turn}", "again", "{}")) for turn in range(3)])
    outcome = run(server, *[gives(ToolResult("1", 0.0))] * 2, observer=record)
    assert (len(server.bodies), len(record.tool_calls)) == (3, 2)
    assert (outcome.status, outcome.error, len(outcome.turns)) == ("finished", None, 3)
    assert outcome.turns[-1] == Turn("", (ToolCall("again", "{}", "c2"),), ())


def test_a_failed_request_fails_the_job_and_keeps_the_turns_done() -> None:
    record = Record()
    broken = httpx2.Response(500, json={"error": {"message": "engine died"}})
    server = FakeVllm(calls(("c1", "add", '{"a": 1, "b": 2}')), broken)
    outcome = run(server, *[gives(ToolResult("3", 0.0))] * 2, observer=record)
    assert (outcome.status, outcome.error) == ("failed", "HTTP 500: engine died")
    assert [len(turn.results) for turn in outcome.turns] == [1]
    assert [request.error for request in record.requests] == [None, "HTTP 500: engine died"]


def test_calls_of_a_reply_that_broke_off_are_not_played() -> None:
    record = Record()
    whole = calls(("c1", "work", "{}"))
    server = FakeVllm([*whole[:3], httpx2.ReadError("reset")])
    outcome = run(server, gives(ToolResult("", 0.0)), observer=record)
    assert (outcome.status, outcome.turns, record.tool_calls) == ("failed", (), [])


def test_the_number_of_retries_can_be_set() -> None:
    record = Record()
    server = FakeVllm(*[httpx2.ConnectError("refused")] * 3, says("done"))
    outcome = run(server, observer=record, max_retries=3)
    assert (outcome.status, record.requests[0].retries) == ("finished", 3)


def test_cancelling_a_job_cancels_its_tools() -> None:
    started = asyncio.Event()
    cancelled: list[bool] = []
    record = Record()

    async def hang(_: float) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def cancel_once_started() -> None:
        job = Job("job-7", (QUESTION,), TOOLS, (gives(ToolResult("", 9.0)), Turn("done")))
        loop = loop_on(FakeVllm(calls(("c1", "hang", "{}"))), job, observer=record, sleep=hang)
        task = asyncio.create_task(loop.run(job))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_once_started())
    assert cancelled == [True]
    assert record.order == ["request 0"]


def test_what_was_said_after_a_turn_is_sent_after_its_pause() -> None:
    again: Message = {"role": "user", "content": "And again?"}
    server = FakeVllm(calls(("c1", "work", "{}")), says("Done."), says("Once more."))
    record = Record()
    outcome = run(server, gives(ToolResult("", 5.0), pause_s=3.0), gives(pause_s=60.0, said=(again,)), observer=record)
    assert outcome.status == "finished"
    assert [request.sent_s for request in record.requests] == [0.0, 8.0, 68.0]
    assert server.bodies[2]["messages"][-2:] == [{"role": "assistant", "content": "Done."}, again]
    assert [turn.said for turn in outcome.turns] == [(), (again,), ()]


def test_a_reply_without_calls_ends_a_job_if_nothing_was_said() -> None:
    outcome = run(FakeVllm(says("Done.")), gives(ToolResult("x", 0.0), pause_s=9.0))
    assert outcome.turns == (Turn("Done."),)
