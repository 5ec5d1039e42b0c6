"""Makes BFCL v4 multi-turn jobs of the benchmark's tasks (questions and tools) and of recorded shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from agentcache.errors import InputError
from converters.bfcl_shapes import Shape, Step, read_shapes
from converters.left_out import LeftOut
from converters.pace import Pace, pace_jobs
from converters.recorded import draw_recordings
from tool_runtime.agent.job import Job, Message, ToolCall, ToolResult, Turn
from workloads.bfcl.dataset import read_constant, read_entries, read_tool_documents
from workloads.bfcl.web_search import write_call_text
from workloads.filler import Encode, write_filler

_ID = re.compile(r"multi_turn_(?:base|long_context|miss_func|miss_param)(?=_\d+$)")


@dataclass(frozen=True, slots=True)
class Task:
    """`questions` has a message of the user for each turn of the user."""

    questions: tuple[str, ...]
    tools: tuple[Mapping[str, Any], ...]


def find_task(task_id: str) -> Task | None:
    """Find a task by its id, "multi_turn_base_0"; None if there is none. Raises InputError without bfcl-eval."""
    category = _ID.match(task_id)
    entry = _read_category(category[0]).get(task_id) if category else None
    if entry is None:
        return None
    questions = (" ".join(message["content"] for message in turn) for turn in entry["question"])
    documents = read_constant("executable_backend_config", "MULTI_TURN_FUNC_DOC_FILE_MAPPING")
    tools = (tool for name in entry["involved_classes"] for tool in read_tool_documents(documents[name]))
    return Task(tuple(question or _read_hint() for question in questions), tuple(tools))


@cache
def _read_category(category: str) -> dict[str, dict[str, Any]]:
    return {entry["id"]: entry for entry in read_entries(f"data/BFCL_v4_{category}.json")}


def _read_hint() -> str:
    """Read what the benchmark says in a turn in which it only adds tools that were missing."""
    return str(read_constant("default_prompts", "DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC"))


# Of results, which are JSON: their tokens were not recorded.
_CHARACTERS_PER_TOKEN = 4


def read_jobs(path: Path, *, jobs: int | None, encode: Encode, pace: Pace, left_out: LeftOut) -> list[Job]:
    """Read `jobs` of the recorded jobs, all for None, drawn by the seed, those that failed apart (`left_out`).

    Replies have the recorded number of tokens, of `encode`; results the recorded number of characters, at four a
    token. A reply stays in the context whole, with its thinking, and all tools of a task are declared from its start.
    Tool times are drawn, and the pauses of users as those of conversations are. Raises InputError with
    path:line and the field.
    """
    shapes = read_shapes(path)
    left_out.failed += sum(shape.error for _, shape in shapes)
    recorded = [(shape, _find_task(shape, place)) for place, shape in shapes if not shape.error]
    drawn = draw_recordings(recorded, jobs, path, pace.seed)
    seeds = np.random.SeedSequence(pace.seed).spawn(len(drawn))
    built = [
        Job(shape.job_id, (_ask(task, 0),), task.tools, _Writer(encode, seed).write(shape, task))
        for (shape, task), seed in zip(drawn, seeds, strict=True)
    ]
    return pace_jobs(built, pace)


def _find_task(shape: Shape, place: str) -> Task:
    task = find_task(shape.id)
    if task is None:
        raise InputError(f"{place}: id: {shape.id} is no multi-turn task of the bfcl-eval that is installed")
    if len(task.questions) < len(shape.turns):
        raise InputError(f"{place}: turns: {len(shape.turns)}, but {shape.id} has {len(task.questions)} questions")
    return task


def _ask(task: Task, number: int) -> Message:
    return {"role": "user", "content": task.questions[number]}


class _Writer:
    """Writes the turns of one job, each text from a stream of its own."""

    def __init__(self, encode: Encode, seed: np.random.SeedSequence) -> None:
        self._encode = encode
        self._seed = seed

    def write(self, shape: Shape, task: Task) -> tuple[Turn, ...]:
        turns: list[Turn] = []
        for number, user_turn in enumerate(shape.turns):
            if turns:
                turns[-1] = replace(turns[-1], said=(_ask(task, number),))
            turns += map(self._write_step, user_turn.steps)
        # No request followed the last reply, so its calls are text.
        last = shape.turns[-1].steps[-1]
        return (*turns[:-1], Turn(self._write_text(last.output_tokens)))

    def _write_step(self, step: Step) -> Turn:
        calls = tuple(ToolCall(name, "{}") for name in step.calls)
        # The calls count towards the reply's size.
        calls_text = "".join("\n" + write_call_text(call) for call in calls)
        results = tuple(
            ToolResult(self._write_text(-(-characters // _CHARACTERS_PER_TOKEN)), 0.0)
            for characters in step.tool_result_chars
        )
        return Turn(self._write_text(step.output_tokens, behind=calls_text), calls, results)

    def _write_text(self, tokens: int, behind: str = "") -> str:
        rng = np.random.default_rng(self._seed.spawn(1)[0])
        return write_filler(tokens, self._encode, rng, wrap=lambda text: text + behind)
