"""Reads recorded shapes of multi-turn jobs from a file of the user: tools per reply and sizes, but no text.

A file has a JSON line a recorded job: its `model` and `id`, and for every turn of the user the steps of the agent.
Such shapes can be taken from the results in github.com/bbrowning/bfcl-vllm-results (gpt-oss served by vLLM).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import Field

from agentcache.errors import InputError
from tool_runtime.bounds import MAX_TOKENS, SomeTokens, Tokens
from workloads.loaded import Record, parse_record, read_lines

# Tags of a model's own format may stand behind a name.
_NAME = re.compile("[a-zA-Z0-9_-]{1,64}")
_NO_NAME = "unknown"


class Step(Record):
    """A reply: the tools that it called, the characters of their results, and its own tokens, with its thinking."""

    tools: list[str]
    tool_result_chars: list[Tokens]
    output_tokens: SomeTokens
    input_tokens: Any = None
    llm_latency_s: Any = None

    @property
    def calls(self) -> list[str]:
        """The tools that were run, by names that the OpenAI API takes: none where calls could not be read."""
        if not self.tool_result_chars:
            return []
        names = (_NAME.match(tool) for tool in self.tools)
        return [name[0] if name else _NO_NAME for name in names]


class UserTurn(Record):
    """The replies to one message of the user."""

    steps: list[Step] = Field(min_length=1)
    user_chars: Any = None


class Shape(Record):
    """One recorded job. `error` marks a run that failed, which has no turns."""

    model: str
    id: str
    turns: list[UserTurn] = Field(default=[])
    error: bool = False

    @property
    def job_id(self) -> str:
        """The task with the model that did it."""
        return f"{self.id}-{self.model}"


def read_shapes(path: Path) -> list[tuple[str, Shape]]:
    """Read the shapes, each with its place path:line. Raises InputError that begins with it."""
    line_of_job: dict[str, int] = {}
    shapes = []
    for line, text in read_lines(path):
        place = f"{path}:{line}"
        shape = parse_record(Shape, text, place)
        _check(shape, place)
        if line_of_job.setdefault(shape.job_id, line) != line:
            raise InputError(f"{place}: id: {shape.id} of {shape.model} again, after line {line_of_job[shape.job_id]}")
        shapes.append((place, shape))
    return shapes


def _check(shape: Shape, place: str) -> None:
    if not (shape.turns or shape.error):
        raise InputError(f"{place}: turns: holds none")
    steps = [step for turn in shape.turns for step in turn.steps]
    if (size := sum(step.output_tokens + sum(step.tool_result_chars) for step in steps)) > MAX_TOKENS:
        raise InputError(
            f"{place}: turns: replies of so many tokens and results of so many characters are {size} together; a job "
            f"may have {MAX_TOKENS}"
        )
    for number, turn in enumerate(shape.turns):
        for index, step in enumerate(turn.steps):
            where = f"{place}: turns[{number}].steps[{index}]"
            if step.tool_result_chars and len(step.tool_result_chars) != len(step.tools):
                raise InputError(f"{where}: {len(step.tools)} tools but {len(step.tool_result_chars)} results")
            if not step.calls and index < len(turn.steps) - 1:
                raise InputError(f"{where}: calls no tool, yet steps follow")
