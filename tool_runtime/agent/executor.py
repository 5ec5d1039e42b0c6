"""Runs the tool calls of one turn side by side. Whatever goes wrong in a call becomes text for the model."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from tool_runtime.agent.job import ToolCall, ToolResult

ToolFunction = Callable[..., Any]
_Function = TypeVar("_Function", bound=ToolFunction)

# OpenAI's rule for function names; servers refuse the whole request when one tool breaks it.
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is the JSON schema of its keyword arguments.

    Raises ValueError for a name that OpenAI's API refuses and for a schema that is not an object schema.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: ToolFunction

    def __post_init__(self) -> None:
        """Raise ValueError for a name or a schema that OpenAI's API refuses."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"tool name {self.name!r}: use 1 to 64 letters, digits, '_' or '-'")
        if not isinstance(self.parameters, Mapping):
            raise ValueError(
                f"tool {self.name}: parameters must be a JSON schema, not {type(self.parameters).__name__}"
            )
        if self.parameters.get("type") != "object":
            kind = self.parameters.get("type")
            raise ValueError(f"tool {self.name}: parameters must be a schema of type 'object', not {kind!r}")
        if not isinstance(self.parameters.get("properties", {}), Mapping):
            raise ValueError(f"tool {self.name}: 'properties' of the parameters must map names to schemas")

    @property
    def is_async(self) -> bool:
        """Tell whether the function is a coroutine function, or an object whose call is one."""
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(type(self.function).__call__)


class ToolRegistry:
    """The tools of an agent by name, in the order added."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Return the tools' names, in the order added."""
        return tuple(self._tools)

    def add(self, tool: Tool) -> None:
        """Add a tool. Raises ValueError when one of this name is there already."""
        if tool.name in self._tools:
            raise ValueError(f"tool {tool.name} is registered twice: names must be unique")
        self._tools[tool.name] = tool

    def tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] = _NO_PARAMETERS,
    ) -> Callable[[_Function], _Function]:
        """Decorate a function to add it, under its own name and docstring unless others are given."""

        def register(function: _Function) -> _Function:
            text = description if description is not None else inspect.getdoc(function) or ""
            self.add(Tool(name or function.__name__, text, parameters, function))
            return function

        return register

    def get(self, name: str) -> Tool | None:
        """Return the tool of this name, None if there is none."""
        return self._tools.get(name)

    def as_openai(self) -> tuple[Mapping[str, Any], ...]:
        """Return the `tools` parameter of the chat API; what a `Job` carries in `tools`."""
        return tuple(
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            }
            for tool in self._tools.values()
        )


# BFCL's wording, so that its tasks read here as they do there.
ERROR_PREFIX = "Error during execution: "


@dataclass(frozen=True, slots=True)
class ExecutedCall:
    """A call, its result, and when it ran, in seconds on the executor's clock."""

    call: ToolCall
    result: ToolResult
    started_s: float
    finished_s: float


class _CallError(Exception):
    """The call failed; the message is for the model."""


class ToolExecutor:
    """Executes calls of the registry's tools, each within `timeout_s` seconds.

    Coroutine functions run on the event loop. Plain functions run in threads, which nothing can stop: one that
    times out or is cancelled goes on unheard until it returns.
    """

    def __init__(self, registry: ToolRegistry, *, timeout_s: float, clock: Callable[[], float]) -> None:
        if timeout_s <= 0:
            raise ValueError(f"timeout_s must be positive, not {timeout_s:g}")
        self._registry = registry
        self._timeout_s = timeout_s
        self._clock = clock

    async def run(
        self, calls: Sequence[ToolCall], on_end: Callable[[ExecutedCall], None] | None = None
    ) -> list[ExecutedCall]:
        """Run calls and return results in their order; `on_end` hears of each as it ends.

        Functions start in the order of the calls, a coroutine function running up to its first wait before the
        next call starts. Cancelling this cancels the coroutine functions and waits for them.
        """
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._execute(call, on_end)) for call in calls]
        return [task.result() for task in tasks]

    async def _execute(self, call: ToolCall, on_end: Callable[[ExecutedCall], None] | None) -> ExecutedCall:
        error: str | None = None
        started_s = self._clock()
        try:
            content = await self._content(call)
        except _CallError as failure:
            error = str(failure)
            content = ERROR_PREFIX + error
        finished_s = self._clock()
        result = ToolResult(_encodable(content), finished_s - started_s, error)
        executed = ExecutedCall(call, result, started_s, finished_s)
        if on_end is not None:
            on_end(executed)
        return executed

    async def _content(self, call: ToolCall) -> str:
        tool = self._registry.get(call.name)
        if tool is None:
            raise _CallError(f"unknown tool {call.name!r}; the tools are: {', '.join(self._registry.names)}")
        arguments = _parse_arguments(call)
        try:
            async with asyncio.timeout(self._timeout_s):
                value = await _invoke(tool, arguments)
        except TimeoutError:
            raise _CallError(f"{call.name} did not finish within {self._timeout_s:g} s") from None
        return _render(call, value)


def _parse_arguments(call: ToolCall) -> dict[str, Any]:
    # A model that passes nothing may write nothing; vLLM, too, takes that for an empty object.
    if not call.arguments.strip():
        return {}
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError) as error:
        raise _CallError(f"the arguments of {call.name} are not valid JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise _CallError(f"the arguments of {call.name} must be a JSON object, not {type(arguments).__name__}")
    return arguments


async def _invoke(tool: Tool, arguments: Mapping[str, Any]) -> Any:
    """Return the function's value. Its exceptions arrive as _CallError, so that a TimeoutError is only ever ours."""
    if not tool.is_async:
        return await asyncio.wrap_future(_start_thread(tool.function, arguments))
    try:
        return await tool.function(**arguments)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # This task was not cancelled: the tool awaited something that was cancelled, which is its failure.
        raise _CallError("cancelled inside the tool") from None
    except (Exception, SystemExit) as error:
        raise _failure(error) from error


def _start_thread(function: ToolFunction, arguments: Mapping[str, Any]) -> Future[Any]:
    # A daemon thread per call and no pool: a tool that hangs must neither take a worker from the calls of other
    # jobs nor keep the process from exiting.
    outcome: Future[Any] = Future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            outcome.set_result(context.run(function, **arguments))
        except BaseException as error:
            # asyncio refuses to carry some exceptions (StopIteration), so none crosses the threads as itself.
            outcome.set_exception(_failure(error))

    # Running from the start, so that a cancelled waiter cannot make set_result fail.
    outcome.set_running_or_notify_cancel()
    threading.Thread(target=work, name="tool", daemon=True).start()
    return outcome


def _failure(error: BaseException) -> _CallError:
    return _CallError(str(error) or type(error).__name__)


def _render(call: ToolCall, value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise _CallError(f"{call.name} returned what JSON cannot hold: {error}") from None


def _encodable(text: str) -> str:
    # File names that are not UTF-8 come as lone surrogates, with which no request could be sent any more.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
