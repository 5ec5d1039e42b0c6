"""A recorded chat, with its tool calls and their results, as the turns of a job."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise, takewhile
from typing import Annotated, Any, Literal

from pydantic import Field

from agentcache.errors import InputError
from converters.left_out import ForeignRecord
from tool_runtime.agent.job import Job, Message, ToolCall, ToolResult, Turn

# OpenAI's rule.
ToolName = Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]


class Function(ForeignRecord):
    """A function that was called, with its arguments as JSON text."""

    name: ToolName
    arguments: str


class Call(ForeignRecord):
    """A tool call as OpenAI's API writes it."""

    function: Function
    id: str = ""
    type: Literal["function"] = "function"


class ChatMessage(ForeignRecord):
    """A message of a chat. The results of a reply's calls come right behind it, in the order of the calls."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None
    tool_calls: list[Call] | None = None


def read_chat(job_id: str, chat: Sequence[ChatMessage], place: str, tools: Sequence[dict[str, Any]] = ()) -> Job:
    """Make a job of a chat: a turn a reply. Its tool times, pauses and arrival are 0, for a chat has none.

    What comes behind the last reply was never sent to a model, so it is left out; the calls of that reply become its
    text. Raises InputError that begins with `place` and the message's number.
    """
    replies = [number for number, message in enumerate(chat) if message.role == "assistant"]
    if not replies:
        raise InputError(f"{place}: has no message of the assistant")
    if replies[0] == 0:
        raise InputError(f"{place}[0]: is a reply; it needs a message before it")
    turns = [_read_turn(chat[start], chat[start + 1 : end], f"{place}[{start}]") for start, end in pairwise(replies)]
    opening = tuple(map(_as_message, chat[: replies[0]]))
    last = chat[replies[-1]]
    return Job(job_id, opening, tuple(tools), (*turns, Turn((last.content or "") + _write_calls(last))))


def check_arguments(call: ToolCall, place: str) -> None:
    """Raise InputError if the arguments are no JSON object, which chat templates and tools need."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise InputError(f"{place}: the arguments of {call.name} are no JSON object; take the entry out")


def declare_tools(names: Iterable[str]) -> tuple[dict[str, Any], ...]:
    """Declare tools of which the name alone was recorded, in alphabetical order, as the OpenAI API takes them."""
    parameters = {"type": "object", "properties": {}}
    return tuple(
        {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}
        for name in sorted(set(names))
    )


def _read_turn(reply: ChatMessage, behind: Sequence[ChatMessage], place: str) -> Turn:
    calls = tuple(ToolCall(call.function.name, call.function.arguments) for call in reply.tool_calls or ())
    for call in calls:
        check_arguments(call, place)
    results = [*takewhile(lambda message: message.role == "tool", behind)]
    said = behind[len(results) :]
    if len(results) != len(calls):
        raise InputError(f"{place}: {len(calls)} calls but {len(results)} results behind them")
    if any(message.role == "tool" for message in said):
        raise InputError(f"{place}: has a result behind what was said after it; put the results first")
    if not behind:
        raise InputError(f"{place}: another reply follows at once; a result or a message must be between them")
    outcomes = tuple(ToolResult(result.content or "", 0.0) for result in results)
    return Turn(reply.content or "", calls, outcomes, said=tuple(map(_as_message, said)))


def _as_message(message: ChatMessage) -> Message:
    return {"role": message.role, "content": message.content or ""}


def _write_calls(reply: ChatMessage) -> str:
    calls = [call.function.model_dump() for call in reply.tool_calls or ()]
    return json.dumps(calls) if calls else ""
