"""What an agent does: a job is turns, a turn is one reply of the model and the tool calls it asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# One message of an OpenAI chat, as the API takes and gives it.
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it. `arguments` is JSON text; `id` is empty until a server has given one."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave back: the text for the model, how long it took, and the error if it failed."""

    content: str
    duration_s: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply and the results of its calls, in the order of the calls. The last turn of a job has no calls."""

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """One task of an agent, from the first request to the last reply.

    `turns` is the recording that a replay follows; it is empty for a job that a model is to do by itself.
    """

    id: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    turns: tuple[Turn, ...] = ()
    arrival_s: float = 0.0
