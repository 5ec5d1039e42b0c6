"""Makes BFCL v4 web_search jobs of the benchmark's questions and of recorded shapes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from tool_runtime.agent.job import Job, ToolCall, ToolResult, Turn
from workloads.bfcl.dataset import FETCH_TOOL, SEARCH_TOOL, Question, read_questions, read_system_message, read_tools
from workloads.filler import Encode, write_filler
from workloads.pacing import ToolLatency

_MAX_HITS = 10
# Below this a search gives fewer hits: a hit of a recorded search has about 100 tokens.
_MIN_TOKENS_PER_HIT = 60
_MIN_KEYWORD_LETTERS = 4


def write_call(tool: str, question: str, rng: np.random.Generator) -> ToolCall:
    """Write a call of the tool with shape letter `tool`, with arguments from the question's words."""
    words = re.findall(r"[A-Za-z0-9]+", question)
    keywords = [word for word in words if len(word) >= _MIN_KEYWORD_LETTERS] or words
    wanted = min(len(keywords), int(rng.integers(3, 7)))
    start = int(rng.integers(len(keywords) - wanted + 1))
    phrase = keywords[start : start + wanted]
    if tool == "s":
        return ToolCall(SEARCH_TOOL, json.dumps({"keywords": " ".join(phrase)}))
    url = _make_url("-".join(phrase[:3]).lower(), rng)
    return ToolCall(FETCH_TOOL, json.dumps({"url": url, "mode": "truncate"}))


def write_call_text(call: ToolCall) -> str:
    """Write the call as a model with Hermes tool calls does: what its tokens are counted on."""
    return f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n</tool_call>'


def write_result(call: ToolCall, tokens: int, encode: Encode, rng: np.random.Generator) -> str:
    """Write the JSON text that `call` gives back, of about `tokens` tokens; the form without text if that is longer."""
    if call.name == FETCH_TOOL:

        def wrap(text: str) -> str:
            return json.dumps({"content": text})
    else:
        heads = _make_heads(call, min(_MAX_HITS, tokens // _MIN_TOKENS_PER_HIT), rng)

        def wrap(text: str) -> str:
            bodies = _split_words(text, len(heads))
            return json.dumps([{**head, "body": body} for head, body in zip(heads, bodies, strict=True)])

    return wrap(write_filler(tokens, encode, rng, wrap))


def _make_heads(call: ToolCall, hits: int, rng: np.random.Generator) -> list[dict[str, str]]:
    """Make title and address of each hit; one hit with neither where even a single full one is too long."""
    keywords: list[str] = json.loads(call.arguments)["keywords"].split()
    heads = []
    for _ in range(hits):
        title = [keywords[pick] for pick in rng.permutation(len(keywords))[:4]]
        heads.append({"title": " ".join(title), "href": _make_url("-".join(title).lower(), rng)})
    return heads or [{"title": "", "href": ""}]


def _make_url(slug: str, rng: np.random.Generator) -> str:
    return f"https://example.org/{slug}/{rng.integers(1000)}"


def _split_words(text: str, parts: int) -> list[str]:
    """Split the text into consecutive pieces of nearly the same number of words."""
    words = text.split(" ")
    bounds = [len(words) * part // parts for part in range(parts + 1)]
    return [" ".join(words[start:end]) for start, end in pairwise(bounds)]


_SHAPES = Path(__file__).with_name("shapes.json")

Tokens = Annotated[int, Field(ge=1)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Step(_Record):
    """A reply that called tools. `tools` has a letter per call, "s" search and "f" fetch; results are of all calls."""

    tools: str = Field(pattern="^[sf]+$")
    output_tokens: Tokens
    result_tokens: Tokens


class Shape(_Record):
    """One recorded job: its steps with tool calls, then an answer of `answer_tokens`."""

    model: str
    file: str
    id: str
    steps: tuple[Step, ...] = Field(min_length=1)
    answer_tokens: Tokens


class ShapeFile(_Record):
    """`shapes.json`: the shapes and, in words, their source, licence and meaning."""

    what: str
    source: str
    licence: str
    how: str
    left_out: str
    shapes: tuple[Shape, ...] = Field(min_length=1)


@cache
def read_shapes() -> tuple[Shape, ...]:
    """Read the recorded sizes that come with the package."""
    return ShapeFile.model_validate_json(_SHAPES.read_text(encoding="utf-8")).shapes


PAIRING_NOTE = (
    "Questions, system message and tools are BFCL v4 web_search's own, tools per step and sizes are recorded; which "
    "question goes with which recording, the tool-call arguments and the filler text are ours, and tool times are "
    "drawn from a distribution, not recorded."
)

MAX_SCALE = 4
# Of {'answer': ...}; the rest of the recorded size is the 'context'.
_SHORT_ANSWER_TOKENS = 6


def build_jobs(
    count: int, *, encode: Encode, scale: float, tool_latency: ToolLatency, arrivals: Sequence[float], seed: int
) -> list[Job]:
    """Build `count` jobs in order of arrival; `arrivals` has one time each, in seconds.

    `scale`, up to `MAX_SCALE`, multiplies the recorded sizes of replies and tool results, in tokens of `encode`. Job n
    is the same for every `count` above n. Past 100 jobs the questions come again.
    """
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
        self, question: Question, encode: Encode, scale: float, tool_latency: ToolLatency, seed: np.random.SeedSequence
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
