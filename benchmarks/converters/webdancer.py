"""Jobs of WebDancer: an agent that searches the web and visits pages, with the real results of its tools.

A file has a JSON line a trajectory, as in github.com/Alibaba-NLP/DeepResearch, `WebAgent/WebDancer/datasets`. Calls
and results are tags in the text:

    assistant: <think>…</think> <tool_call>{"name": …, "arguments": {…}}</tool_call>
    user: <tool_response>…</tool_response>
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from converters.chat import Call, ChatMessage, Function, ToolName, read_chat
from converters.left_out import ForeignRecord, LeftOut
from converters.pace import Pace, pace_jobs
from converters.recorded import draw_recordings
from tool_runtime.agent.job import Job
from workloads.loaded import parse_record, read_lines

_RESULT = re.compile(r"\s*<tool_response>\n?(.*?)\n?</tool_response>\s*", re.DOTALL)
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


class _Message(ForeignRecord):
    role: Literal["system", "user", "assistant"]
    content: str


class _CallText(ForeignRecord):
    name: ToolName
    arguments: dict[str, Any]


class _Tool(ForeignRecord):
    name_for_model: ToolName
    description_for_model: str
    parameters: dict[str, Any]


class _Trajectory(ForeignRecord):
    messages: list[_Message] = Field(min_length=1)
    functions: list[_Tool]


def read_trajectories(path: Path, *, jobs: int | None, pace: Pace, left_out: LeftOut) -> list[Job]:
    """Read `jobs` trajectories, all for None, drawn by the seed, each a job with its text named after its line.

    Tool times are drawn. Raises InputError with path:line, the field and the message's number.
    """
    recorded = [
        _read_trajectory(line, left_out.parse(_Trajectory, text, f"{path}:{line}"), f"{path}:{line}")
        for line, text in read_lines(path)
    ]
    return pace_jobs(draw_recordings(recorded, jobs, path, pace.seed), pace)


def _read_trajectory(line: int, recorded: _Trajectory, place: str) -> Job:
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name_for_model,
                "description": tool.description_for_model,
                "parameters": tool.parameters,
            },
        }
        for tool in recorded.functions
    ]
    chat = _read_messages(recorded.messages, f"{place}: messages")
    return read_chat(f"trajectory-{line}", chat, f"{place}: messages", tools)


def _read_messages(messages: Sequence[_Message], place: str) -> list[ChatMessage]:
    chat: list[ChatMessage] = []
    for number, message in enumerate(messages):
        if message.role == "assistant":
            chat.append(_read_reply(message.content, f"{place}[{number}].content"))
        elif result := _RESULT.fullmatch(message.content):
            chat.append(ChatMessage(role="tool", content=result[1]))
        else:
            chat.append(ChatMessage(role=message.role, content=message.content))
    return chat


def _read_reply(content: str, place: str) -> ChatMessage:
    calls = [_read_call(text, place) for text in _CALL.findall(content)]
    said = _CALL.sub("", content).strip() if calls else content
    return ChatMessage(role="assistant", content=said, tool_calls=calls)


def _read_call(text: str, place: str) -> Call:
    called = parse_record(_CallText, text.strip().encode(), f"{place}: <tool_call>")
    return Call(function=Function(name=called.name, arguments=json.dumps(called.arguments, ensure_ascii=False)))
