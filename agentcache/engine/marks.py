"""Reads what the engine core gets of a request in its extra arguments: our front end's marks, and a dictated reply.

Front ends other than Python's let clients send any.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from agentcache.engine.constants import CALLS_ARGUMENT, REPLY_ARGUMENT
from tool_runtime.agent.job import ToolCall
from tool_runtime.learning.tool_key import ToolKey, tool_keys

if TYPE_CHECKING:
    from agentcache.engine.replies.ended_reply import EndedReply
    from agentcache.engine.vllm.types import Request, SamplingParams


def read_mark(request: Request | EndedReply, name: str) -> Any:
    """Read a mark; None if there is none."""
    return _read(request.sampling_params, name)


def find_forced_reply(params: SamplingParams | None) -> Any:
    """Find the value of REPLY_ARGUMENT; None where the model is to reply.

    Whether a client may dictate is checked by this when its request comes in, so what is dictated with a reply is
    read by nothing else.
    """
    return _read(params, REPLY_ARGUMENT)


def find_forced_calls(params: SamplingParams | None) -> Any:
    """Find the value of CALLS_ARGUMENT; None where no reply is dictated with it."""
    return _read(params, CALLS_ARGUMENT) if find_forced_reply(params) is not None else None


def _read(params: SamplingParams | None, name: str) -> Any:
    return ((params and params.extra_args) or {}).get(name)


def write_forced_calls(calls: Iterable[ToolCall]) -> str:
    """Write the calls as JSON text."""
    return json.dumps([[call.name, call.arguments] for call in calls])


def read_forced_calls(text: object) -> list[ToolKey] | None:
    """Read CALLS_ARGUMENT, JSON text `[[tool, arguments as JSON text], ...]`; None when it is not that."""
    try:
        calls = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(calls, list) or not all(map(_is_call, calls)):
        return None
    return tool_keys((name, arguments) for name, arguments in calls)


def _is_call(call: object) -> bool:
    return isinstance(call, list) and len(call) == 2 and all(isinstance(part, str) for part in call)
