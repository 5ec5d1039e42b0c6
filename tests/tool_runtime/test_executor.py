from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from fake_vllm import FakeClock

from tool_runtime.agent.executor import ExecutedCall, Tool, ToolExecutor, ToolRegistry
from tool_runtime.agent.job import ToolCall

# Long enough never to be reached in a test that passes.
AMPLE_S = 20.0


def executor_of(timeout_s: float = AMPLE_S, clock: FakeClock | None = None, **functions: Any) -> ToolExecutor:
    registry = ToolRegistry()
    for name, function in functions.items():
        registry.add(Tool(name, "", {"type": "object"}, function))
    return ToolExecutor(registry, timeout_s=timeout_s, clock=clock or FakeClock())


def run_one(executor: ToolExecutor, name: str, arguments: str = "{}") -> ExecutedCall:
    [executed] = asyncio.run(executor.run([ToolCall(name, arguments, "call-1")]))
    return executed


def error_of(function: Callable[..., Any], arguments: str = "{}", timeout_s: float = AMPLE_S) -> str:
    """The error of a call that must fail; the model is told the same."""
    result = run_one(executor_of(timeout_s, tool=function), "tool", arguments).result
    assert result.error is not None
    assert result.content == f"Error during execution: {result.error}"
    return result.error


def test_calls_run_in_parallel_and_results_keep_their_order() -> None:
    last_ended = asyncio.Event()
    ended: list[str] = []

    async def first() -> str:
        await last_ended.wait()
        return "first"

    async def last() -> str:
        last_ended.set()
        return "last"

    executor = executor_of(first=first, last=last)
    calls = [ToolCall("first", "{}", "a"), ToolCall("last", "{}", "b")]
    executed = asyncio.run(executor.run(calls, on_end=lambda each: ended.append(each.call.id)))
    assert [each.call for each in executed] == calls
    assert [each.result.content for each in executed] == ["first", "last"]
    assert ended == ["b", "a"]


def test_plain_functions_run_side_by_side_however_many_they_are() -> None:
    calls = [ToolCall("meet", "{}")] * 60
    barrier = threading.Barrier(len(calls), timeout=AMPLE_S)

    def meet() -> str:
        barrier.wait()
        return "met"

    executed = asyncio.run(executor_of(meet=meet).run(calls))
    assert {each.result.content for each in executed} == {"met"}


def test_coroutine_functions_start_in_the_order_of_the_calls() -> None:
    trace: list[int] = []

    async def step(number: int) -> None:
        trace.append(number)
        await asyncio.sleep(0)
        trace.append(number)

    calls = [ToolCall("step", json.dumps({"number": number})) for number in range(5)]
    asyncio.run(executor_of(step=step).run(calls))
    assert trace[:5] == [0, 1, 2, 3, 4]


def test_strings_are_given_as_they_are_and_other_values_as_json() -> None:
    values = ['plain "text"', "", {"grüße": ["日本", None, 1.5, True]}, None, 7]
    executor = executor_of(give=lambda index: values[index])
    contents = [run_one(executor, "give", json.dumps({"index": index})).result.content for index in range(len(values))]
    assert contents == ['plain "text"', "", '{"grüße": ["日本", null, 1.5, true]}', "null", "7"]


def test_arguments_are_passed_as_keywords() -> None:
    executor = executor_of(join=lambda left, right: f"{left}-{right}")
    assert run_one(executor, "join", '{"right": "ö", "left": 1}').result.content == "1-ö"


def test_no_arguments_at_all_count_as_an_empty_object() -> None:
    assert run_one(executor_of(now=lambda: "noon"), "now", "").result.content == "noon"


def test_plain_functions_see_the_context_of_the_run() -> None:
    user = contextvars.ContextVar("user", default="nobody")

    async def run() -> list[ExecutedCall]:
        user.set("ada")
        return await executor_of(who=user.get).run([ToolCall("who", "{}")])

    assert asyncio.run(run())[0].result.content == "ada"


def test_times_are_the_injected_clock() -> None:
    clock = FakeClock()
    clock.advance(5.0)

    async def work() -> str:
        clock.advance(2.5)
        return "done"

    executed = run_one(executor_of(clock=clock, work=work), "work")
    assert (executed.started_s, executed.finished_s, executed.result.duration_s) == (5.0, 7.5, 2.5)
    assert executed.result.error is None


def fail_with(error: BaseException) -> tuple[Callable[[], None], Callable[[], Any]]:
    def plain() -> None:
        raise error

    async def coroutine() -> None:
        raise error

    return plain, coroutine


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such file: a.txt"), "no such file: a.txt"),
        (KeyError(), "KeyError"),
        (TimeoutError("socket timed out"), "socket timed out"),
        (SystemExit("bye"), "bye"),
    ],
)
def test_exceptions_become_error_results(error: BaseException, text: str) -> None:
    for function in fail_with(error):
        assert error_of(function) == text


def test_an_exception_asyncio_cannot_carry_is_an_error_result() -> None:
    plain, _ = fail_with(StopIteration())
    assert error_of(plain) == "StopIteration"


def test_one_failing_call_leaves_the_others_alone() -> None:
    plain, _ = fail_with(ValueError("broken"))
    executor = executor_of(bad=plain, good=lambda: "fine")
    executed = asyncio.run(executor.run([ToolCall("bad", "{}"), ToolCall("good", "{}"), ToolCall("none", "{}")]))
    assert [each.result.error is None for each in executed] == [False, True, False]


def test_unknown_tool_names_those_there_are() -> None:
    executed = run_one(executor_of(ls=lambda: "", cd=lambda: ""), "rm")
    assert executed.result.error == "unknown tool 'rm'; the tools are: ls, cd"


@pytest.mark.parametrize("arguments", ['{"a": ', "not json", "[" * 100_000])
def test_broken_json_is_an_error_result(arguments: str) -> None:
    assert "are not valid JSON" in error_of(lambda: "never", arguments)


@pytest.mark.parametrize("arguments", ["[1]", "null", '"text"', "3"])
def test_arguments_other_than_an_object_are_an_error_result(arguments: str) -> None:
    assert "must be a JSON object" in error_of(lambda: "never", arguments)


def test_arguments_that_a_tool_does_not_take_are_an_error_result() -> None:
    assert "unexpected keyword argument 'b'" in error_of(lambda: "never", '{"b": 1}')


def test_a_value_that_json_cannot_hold_is_an_error_result() -> None:
    assert "returned what JSON cannot hold" in error_of(lambda: {"x": object()})


def test_text_that_utf8_cannot_hold_is_escaped() -> None:
    content = run_one(executor_of(ls=lambda: "caf\udce9.txt ok"), "ls").result.content
    assert content == r"caf\udce9.txt ok"


def test_a_coroutine_function_is_cancelled_at_its_timeout() -> None:
    cancelled: list[bool] = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    assert error_of(hang, timeout_s=0.01) == "tool did not finish within 0.01 s"
    assert cancelled == [True]


def test_a_plain_function_is_left_behind_at_its_timeout() -> None:
    release = threading.Event()
    left = threading.Event()

    def hang() -> None:
        release.wait(AMPLE_S)
        left.set()

    assert error_of(hang, timeout_s=0.01) == "tool did not finish within 0.01 s"
    assert not left.is_set()
    release.set()
    assert left.wait(AMPLE_S)


def test_each_call_has_its_own_timeout() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    executor = executor_of(timeout_s=0.3, hang=hang, quick=lambda: "ok")
    executed = asyncio.run(executor.run([ToolCall("hang", "{}"), ToolCall("quick", "{}"), ToolCall("hang", "{}")]))
    assert [each.result.content == "ok" for each in executed] == [False, True, False]


def test_cancelling_the_run_cancels_its_tools_and_waits_for_them() -> None:
    started, ended = asyncio.Event(), []

    async def hang() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    async def cancel_once_started() -> None:
        run = asyncio.create_task(executor_of(hang=hang).run([ToolCall("hang", "{}")]))
        await started.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert ended == ["cleaned up"]

    asyncio.run(cancel_once_started())


def test_a_tool_cancelled_inside_does_not_cancel_the_run() -> None:
    async def await_cancelled() -> None:
        inner = asyncio.create_task(asyncio.Event().wait())
        inner.cancel()
        await inner

    assert error_of(await_cancelled) == "cancelled inside the tool"


def test_a_timeout_must_be_positive() -> None:
    with pytest.raises(ValueError, match="timeout_s must be positive"):
        executor_of(timeout_s=0)
