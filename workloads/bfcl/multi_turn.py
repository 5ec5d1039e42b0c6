"""BFCL v4 multi-turn jobs, made of the benchmark's questions and tools and of recorded shapes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from agentcache.errors import InputError
from tool_runtime.agent.job import Job, Message, ToolCall, ToolResult, Turn
from workloads.bfcl.multi_turn_shapes import Shape, Step, read_shapes
from workloads.bfcl.multi_turn_tasks import Task, find_task
from workloads.bfcl.tool_calls import write_call_text
from workloads.filler import Encode, write_filler
from workloads.loaded import LoadedJobs, draw_recordings
from workloads.pacing import Pace, describe_pace, pace_jobs

_RECORDED_NOTE = (
    "Questions and tools are BFCL v4 multi-turn's own; tools per step and the sizes of replies and results are "
    "recorded, {failed} recorded jobs failed and are left out. Arguments and filler text are ours. A reply stays in "
    "the context whole, with its thinking, and all tools of a task are declared from its start."
)
# Of results, which are JSON: their tokens were not recorded.
_CHARACTERS_PER_TOKEN = 4


def load_shapes(path: Path, *, jobs: int | None, encode: Encode, pace: Pace) -> LoadedJobs:
    """Load `jobs` of the recorded jobs, all for None, drawn by the seed.

    Replies have the recorded number of tokens, of `encode`; results the recorded number of characters, at four a
    token. Tool times are drawn, and the pauses of users as those of conversations are. Raises InputError with
    path:line and the field.
    """
    shapes = read_shapes(path)
    recorded = [(shape, _find_task(shape, place)) for place, shape in shapes if not shape.error]
    drawn = draw_recordings(recorded, jobs, path, pace.seed)
    seeds = np.random.SeedSequence(pace.seed).spawn(len(drawn))
    built = [
        Job(shape.job_id, (_ask(task, 0),), task.tools, _Writer(encode, seed).write(shape, task))
        for (shape, task), seed in zip(drawn, seeds, strict=True)
    ]
    paced = pace_jobs(built, pace)
    note = _RECORDED_NOTE.format(failed=len(shapes) - len(recorded))
    return LoadedJobs(paced, (note, describe_pace(paced)))


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
