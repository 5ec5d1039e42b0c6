"""Small recorded jobs for the tests of the replay, and a tokenizer that needs no model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fake_server import encode, render

from agentcache.jobs.recorded_job import TextJob, record_text
from tool_runtime.agent.job import Job, Message, ToolCall, ToolResult, Turn

TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}


class CharacterTokenizer:
    """The fake server's, without the server."""

    def encode(self, text: str) -> list[int]:
        return encode(text)

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), *, for_reply: bool
    ) -> list[int]:
        return encode(render(messages, tools, for_reply=for_reply))


def make_turn(*results: str, seconds: float = 0.0) -> Turn:
    """A reply with a call of `look` per result; without results, an answer."""
    if not results:
        return Turn("It is here.")
    calls = tuple(ToolCall("look", json.dumps({"at": result})) for result in results)
    return Turn("I look.", calls, tuple(ToolResult(result, seconds) for result in results))


def make_job(job_id: str = "job-0", *turns: Turn, arrival_s: float = 0.0) -> Job:
    """Two calls of one after the other and the answer, unless other turns are given."""
    question = {"role": "user", "content": "Where is it?"}
    turns = turns or (make_turn("nothing here"), make_turn("found it"), make_turn())
    return Job(job_id, (question,), (TOOL,), turns, arrival_s)


def record(job: Job) -> TextJob:
    return record_text([job], CharacterTokenizer())[0]
