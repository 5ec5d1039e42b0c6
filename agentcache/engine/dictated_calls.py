"""The tool calls that a dictated reply stands for, as a request carries them (`constants.CALLS_ARGUMENT`)."""

from __future__ import annotations

import json
from collections.abc import Iterable

from tool_runtime.job import ToolCall
from tool_runtime.tool_key import ToolKey, tool_key


def write_dictated_calls(calls: Iterable[ToolCall]) -> str:
    """JSON text."""
    return json.dumps([[call.name, call.arguments] for call in calls])


def read_dictated_calls(text: object) -> list[ToolKey] | None:
    """The value of CALLS_ARGUMENT, JSON text `[[tool, arguments as JSON text], ...]`; None when it is not that."""
    try:
        calls = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(calls, list) or not all(map(_is_call, calls)):
        return None
    return [tool_key(*call) for call in calls]


def _is_call(call: object) -> bool:
    return isinstance(call, list) and len(call) == 2 and all(isinstance(part, str) for part in call)
