from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import httpx2
import pytest
from fake_vllm import FakeClock, FakeVllm, calls, says

from tool_runtime.agent.agent_loop import AgentLoop, JobOutcome, no_options
from tool_runtime.agent.executor import ExecutedCall, Tool, ToolExecutor, ToolRegistry
from tool_runtime.agent.job import Job, Message, ToolCall, ToolResult, Turn
from tool_runtime.agent.model_client import ModelClient, RequestOutcome

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


def registry_of(**functions: Any) -> ToolRegistry:
    registry = ToolRegistry()
    for name, function in functions.items():
        registry.add(Tool(name, f"does {name}", {"type": "object"}, function))
    return registry


def loop_on(
    server: FakeVllm,
    registry: ToolRegistry,
    clock: FakeClock | None = None,
    observer: Record | None = None,
    request_options: Callable[[int], Mapping[str, Any]] = no_options,
    *,
    max_retries: int = 2,
    **limits: int,
) -> AgentLoop:
    clock = clock or FakeClock()
    executor = ToolExecutor(registry, timeout_s=20.0, clock=clock)
    return AgentLoop(
        ModelClient(server.client(), "m", clock=clock, sleep=clock.sleep, max_retries=max_retries),
        executor,
        sleep=clock.sleep,
        observer=observer,
        request_options=request_options,
        **limits,
    )


def run(server: FakeVllm, registry: ToolRegistry, **settings: Any) -> JobOutcome:
    job = Job("job-7", (QUESTION,), registry.as_openai())
    return asyncio.run(loop_on(server, registry, **settings).run(job))


def add(a: int, b: int) -> int:
    return a + b


def test_a_job_of_several_turns_runs_to_its_answer() -> None:
    server = FakeVllm(
        calls(("c1", "add", '{"a":1,  "b":2}'), content="\n\nLet me see. "),
        calls(("c2", "add", '{"a": 3, "b": 3}')),
        says("Six."),
    )
    outcome = run(server, registry_of(add=add))
    assert (outcome.job_id, outcome.status, outcome.error, outcome.stopped_by_limit) == (
        "job-7",
        "finished",
        None,
        False,
    )
    assert outcome.turns == (
        Turn("\n\nLet me see. ", (ToolCall("add", '{"a":1,  "b":2}', "c1"),), (ToolResult("3", 0.0),)),
        Turn("", (ToolCall("add", '{"a": 3, "b": 3}', "c2"),), (ToolResult("6", 0.0),)),
        Turn("Six."),
    )


def test_the_history_is_what_was_received() -> None:
    server = FakeVllm(
        calls(("c1", "add", '{"a":1,  "b":2}'), content="\n\nLet me see. "),
        calls(("c2", "add", "not json"), ("c3", "add", '{"a": "é", "b": "\\u00e9"}')),
        says("Six."),
    )
    run(server, registry_of(add=add))

    def call(id_: str, arguments: str) -> dict[str, Any]:
        return {"id": id_, "type": "function", "function": {"name": "add", "arguments": arguments}}

    first = {"role": "assistant", "content": "\n\nLet me see. ", "tool_calls": [call("c1", '{"a":1,  "b":2}')]}
    both = [call("c2", "not json"), call("c3", '{"a": "é", "b": "\\u00e9"}')]
    second = {"role": "assistant", "content": None, "tool_calls": both}
    histories = [body["messages"] for body in server.bodies]
    assert histories[0] == [QUESTION]
    assert histories[1] == [QUESTION, first, {"role": "tool", "tool_call_id": "c1", "content": "3"}]
    assert histories[2][:4] == [*histories[1], second]
    assert [message["tool_call_id"] for message in histories[2][4:]] == ["c2", "c3"]
    assert histories[2][4]["content"].startswith("Error during execution: the arguments of add are not valid JSON")
    assert histories[2][5]["content"] == "éé"


def test_a_request_carries_tools_session_and_its_turn_s_options() -> None:
    server = FakeVllm(calls(("c1", "add", '{"a": 1, "b": 2}')), says("3"))
    registry = registry_of(add=add)
    run(server, registry, request_options=lambda turn: {"max_tokens": 16, "return_token_ids": True, "seed": turn})
    assert [body["tools"] for body in server.bodies] == [list(registry.as_openai())] * 2
    assert [body["session_id"] for body in server.bodies] == ["job-7", "job-7"]
    assert [(body["max_tokens"], body["return_token_ids"], body["seed"]) for body in server.bodies] == [
        (16, True, 0),
        (16, True, 1),
    ]


def test_a_job_without_tools_sends_none() -> None:
    server = FakeVllm(says("hello"))
    assert run(server, registry_of()).turns == (Turn("hello"),)
    assert "tools" not in server.bodies[0]


def test_the_observer_hears_of_each_thing_as_it_ends() -> None:
    record = Record()
    second_ended = asyncio.Event()
    told_before_the_turn_ended: list[list[str]] = []

    async def first() -> str:
        await second_ended.wait()
        told_before_the_turn_ended.append(list(record.order))
        return "1"

    async def second() -> None:
        asyncio.get_running_loop().call_soon(second_ended.set)
        raise ValueError("broken")

    server = FakeVllm(calls(("c1", "first", "{}"), ("c2", "second", "{}")), says("done"))
    run(server, registry_of(first=first, second=second), observer=record)
    assert told_before_the_turn_ended == [["request 0", "second 0"]]
    assert record.order == ["request 0", "second 0", "first 0", "request 1"]
    assert [(job, turn, executed.result.error) for job, turn, executed in record.tool_calls] == [
        ("job-7", 0, "broken"),
        ("job-7", 0, None),
    ]
    assert [(request.job_id, request.finish_reason) for request in record.requests] == [
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
    outcome = run(server, registry_of(work=lambda: clock.advance(5.0)), clock=clock)
    assert (outcome.started_s, outcome.finished_s) == (10.0, 18.0)
    assert outcome.turns[0].results[0].duration_s == 5.0


def test_the_loop_stops_at_the_step_limit() -> None:
    ran: list[int] = []
    server = FakeVllm(*[calls((f"c{turn}", "again", "{}")) for turn in range(21)])
    outcome = run(server, registry_of(again=lambda: ran.append(1)))
    assert (len(server.bodies), len(ran)) == (21, 20)
    assert (outcome.status, outcome.stopped_by_limit, outcome.error) == ("finished", True, None)
    assert outcome.turns[-1] == Turn("", (ToolCall("again", "{}", "c20"),), ())
    assert len(outcome.turns) == 21


def test_an_answer_at_the_step_limit_is_an_ordinary_end() -> None:
    outcome = run(FakeVllm(calls(("c", "again", "{}")), says("done")), registry_of(again=lambda: 1), max_tool_steps=1)
    assert (outcome.status, outcome.stopped_by_limit, outcome.turns[-1]) == ("finished", False, Turn("done"))


def test_a_failed_request_fails_the_job_and_keeps_the_turns_done() -> None:
    record = Record()
    broken = httpx2.Response(500, json={"error": {"message": "engine died"}})
    server = FakeVllm(calls(("c1", "add", '{"a": 1, "b": 2}')), broken)
    outcome = run(server, registry_of(add=add), observer=record)
    assert (outcome.status, outcome.error, outcome.stopped_by_limit) == ("failed", "HTTP 500: engine died", False)
    assert [len(turn.results) for turn in outcome.turns] == [1]
    assert [request.error for request in record.requests] == [None, "HTTP 500: engine died"]


def test_calls_of_a_reply_that_broke_off_are_not_run() -> None:
    ran: list[int] = []
    whole = calls(("c1", "work", "{}"))
    server = FakeVllm([*whole[:3], httpx2.ReadError("reset")])
    outcome = run(server, registry_of(work=lambda: ran.append(1)))
    assert (outcome.status, outcome.stopped_by_limit, outcome.turns, ran) == ("failed", False, (), [])


def test_the_number_of_retries_can_be_set() -> None:
    record = Record()
    server = FakeVllm(*[httpx2.ConnectError("refused")] * 3, says("done"))
    outcome = run(server, registry_of(), observer=record, max_retries=3)
    assert (outcome.status, record.requests[0].retries) == ("finished", 3)


def test_cancelling_a_job_cancels_its_tools() -> None:
    started = asyncio.Event()
    cancelled: list[bool] = []
    record = Record()

    async def hang() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def cancel_once_started() -> None:
        registry = registry_of(hang=hang)
        loop = loop_on(FakeVllm(calls(("c1", "hang", "{}"))), registry, observer=record)
        job = asyncio.create_task(loop.run(Job("job-7", (QUESTION,), registry.as_openai())))
        await started.wait()
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job

    asyncio.run(cancel_once_started())
    assert cancelled == [True]
    assert record.order == ["request 0"]


def test_jobs_of_one_loop_do_not_mix() -> None:
    server = FakeVllm(*[says("done")] * 3)
    loop = loop_on(server, registry_of())

    async def run_all() -> list[JobOutcome]:
        return await asyncio.gather(*(loop.run(Job(f"job-{n}", (QUESTION,))) for n in range(3)))

    assert [outcome.job_id for outcome in asyncio.run(run_all())] == ["job-0", "job-1", "job-2"]
    assert sorted(body["session_id"] for body in server.bodies) == ["job-0", "job-1", "job-2"]


def test_what_was_said_after_a_turn_is_sent_after_its_pause() -> None:
    clock = FakeClock()
    again: Message = {"role": "user", "content": "And again?"}
    server = FakeVllm(calls(("c1", "work", "{}")), says("Done."), says("Once more."))
    registry = registry_of(work=lambda: clock.advance(5.0))
    turns = (
        Turn("", (ToolCall("work", "{}"),), (ToolResult("null", 5.0),), pause_s=3.0),
        Turn("Done.", pause_s=60.0, said=(again,)),
        Turn("Once more."),
    )
    record = Record()
    loop = loop_on(server, registry, observer=record, clock=clock, max_tool_steps=2)
    outcome = asyncio.run(loop.run(Job("job-7", (QUESTION,), registry.as_openai(), turns)))
    assert (outcome.status, outcome.stopped_by_limit) == ("finished", False)
    assert [request.sent_s for request in record.requests] == [0.0, 8.0, 68.0]
    assert server.bodies[2]["messages"][-2:] == [{"role": "assistant", "content": "Done."}, again]
    assert [turn.said for turn in outcome.turns] == [(), (again,), ()]


def test_a_reply_without_calls_ends_a_job_if_nothing_was_said() -> None:
    server = FakeVllm(says("Done."))
    loop = loop_on(server, registry_of())
    turns = (Turn("", (ToolCall("work", "{}"),), (ToolResult("x", 0.0),), pause_s=9.0), Turn("."))
    outcome = asyncio.run(loop.run(Job("job-7", (QUESTION,), turns=turns)))
    assert outcome.turns == (Turn("Done."),)
