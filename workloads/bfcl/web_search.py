"""BFCL v4 web_search jobs made of the benchmark's questions and of recorded shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentcache.errors import InputError
from tool_runtime.agent.job import Job, ToolCall, ToolResult, Turn
from workloads.bfcl.dataset import Question, read_questions, read_system_message, read_tools
from workloads.bfcl.shapes import Shape, Step, read_shapes
from workloads.bfcl.tool_calls import write_call, write_call_text, write_result
from workloads.filler import Encode, write_filler
from workloads.tool_latency import ToolLatency

PAIRING_NOTE = (
    "Questions, system message and tools are BFCL v4 web_search's own, tools per step and sizes are recorded; which "
    "question goes with which recording, the tool-call arguments and the filler text are ours, and tool times are "
    "drawn from a distribution, not recorded."
)

MAX_SCALE = 4
# Of {'answer': ...}; the rest of the recorded size is the 'context'.
_SHORT_ANSWER_TOKENS = 6


def build_jobs(
    count: int,
    *,
    encode: Encode,
    scale: float,
    tool_latency: ToolLatency,
    arrivals: Sequence[float],
    seed: int,
) -> list[Job]:
    """Build `count` jobs in order of arrival; `arrivals` has one time each, in seconds.

    `scale` multiplies the recorded sizes of replies and tool results, in tokens of `encode`. Job n is the same for
    every `count` above n. Past 100 jobs the questions come again. Raises InputError for a bad count or scale.
    """
    if count < 1:
        raise InputError(f"--jobs {count}: give at least 1")
    if not 0 < scale <= MAX_SCALE:
        raise InputError(f"--scale {scale:g}: give a number above 0 and up to {MAX_SCALE}")
    questions = read_questions()
    order_seed, *job_seeds = np.random.SeedSequence(seed).spawn(count + 1)
    order = np.random.default_rng(order_seed).permutation(len(questions))
    jobs = []
    for number, (arrival_s, job_seed) in enumerate(zip(arrivals, job_seeds, strict=True)):
        question = questions[order[number % len(questions)]]
        writer = _TurnWriter(question, encode, scale, tool_latency, job_seed)
        messages = (read_system_message(), {"role": "user", "content": question.text})
        job_id = f"{question.id}-{number}"
        jobs.append(Job(job_id, messages, tools=read_tools(), turns=writer.write(), arrival_s=arrival_s))
    return jobs


class _TurnWriter:
    """Writes the turns of one job.

    Choices and texts draw from separate streams, and each text from its own: where a text stops depends on the
    tokenizer, and nothing else may.
    """

    def __init__(
        self,
        question: Question,
        encode: Encode,
        scale: float,
        tool_latency: ToolLatency,
        seed: np.random.SeedSequence,
    ) -> None:
        self._question = question
        self._encode = encode
        self._scale = scale
        self._tool_latency = tool_latency
        choice_seed, self._text_seed = seed.spawn(2)
        self._choices = np.random.default_rng(choice_seed)

    def write(self) -> tuple[Turn, ...]:
        shapes = read_shapes()
        shape: Shape = shapes[self._choices.integers(len(shapes))]
        return (*map(self._write_step, shape.steps), Turn(self._write_answer(shape.answer_tokens)))

    def _write_step(self, step: Step) -> Turn:
        calls = tuple(write_call(tool, self._question.text, self._choices) for tool in step.tools)
        results = [
            ToolResult(write_result(call, tokens, self._encode, self._next_text()), self._tool_latency(self._choices))
            for call, tokens in zip(calls, _split(self._scaled(step.result_tokens), len(calls)), strict=True)
        ]
        return Turn(self._write_thinking(step.output_tokens, calls), calls, tuple(results))

    def _write_thinking(self, recorded_tokens: int, calls: Sequence[ToolCall]) -> str:
        """Write what comes before the calls: the calls count towards the reply's size."""
        calls_text = "".join("\n" + write_call_text(call) for call in calls)
        tokens = self._scaled(recorded_tokens)
        return write_filler(tokens, self._encode, self._next_text(), wrap=lambda thinking: thinking + calls_text)

    def _write_answer(self, recorded_tokens: int) -> str:
        answer = write_filler(_SHORT_ANSWER_TOKENS, self._encode, self._next_text())

        def wrap(context: str) -> str:
            return f"{{'answer': '{answer}', 'context': '{context}'}}"

        return wrap(write_filler(self._scaled(recorded_tokens), self._encode, self._next_text(), wrap))

    def _scaled(self, tokens: int) -> int:
        return max(1, round(tokens * self._scale))

    def _next_text(self) -> np.random.Generator:
        return np.random.default_rng(self._text_seed.spawn(1)[0])


def _split(total: int, parts: int) -> list[int]:
    """Split `total` into `parts` whole numbers that differ by 1 at most."""
    return [total // parts + (part < total % parts) for part in range(parts)]
