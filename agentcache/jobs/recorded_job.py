"""Writes a recorded job as token ids: the prompts of its turns, and the replies that the server is to return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from agentcache.errors import InputError
from agentcache.jobs.context_job import ContextJob
from agentcache.jobs.tokenizer import Tokenizer
from tool_runtime.agent.job import Job, Message, Turn

_QUESTION: Message = {"role": "user", "content": "?"}


class ReplyEncoder:
    """Finds a reply's ids with the chat template itself, so that any template and tool-call format works.

    render([question], for_reply)        prompt
    render([question, reply])            prompt | reply | end of turn | rest
                                                 ^^^^^^^^^^^^^^^^^^^ forced
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._prompt = tokenizer.render([_QUESTION], for_reply=True)
        # Two replies that share no token have only what the template puts behind every reply in common.
        one, other = (self._behind_prompt(Turn(text)) for text in ("x", "7"))
        self._tail = _common_suffix(one, other)

    def encode(self, turn: Turn) -> list[int]:
        """Return the reply's ids with its end-of-turn token, if the template has one.

        Raises InputError for a template that does not let a reply be forced.
        """
        behind = self._behind_prompt(turn)
        end = len(behind) - len(self._tail)
        if behind[end:] != self._tail:
            raise InputError("the model's chat template ends its replies in different ways; replay with another model")
        return behind[:end] + self._tail[:1]

    def _behind_prompt(self, turn: Turn) -> list[int]:
        whole = self._tokenizer.render([_QUESTION, assistant_message(turn)], for_reply=False)
        if whole[: len(self._prompt)] != self._prompt:
            raise InputError(
                "the model's chat template does not put a reply where the generation prompt ends, "
                "so recorded replies cannot be forced; replay with another model"
            )
        return whole[len(self._prompt) :]


def assistant_message(turn: Turn) -> Message:
    """Return the reply as a message of the API, with ids of our own for calls without one."""
    if not turn.tool_calls:
        return {"role": "assistant", "content": turn.content}
    calls = [
        {
            "id": call.id or f"call-{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for number, call in enumerate(turn.tool_calls)
    ]
    return {"role": "assistant", "content": turn.content, "tool_calls": calls}


def tool_messages(turn: Turn) -> list[Message]:
    """Return the turn's results as messages of the API."""
    return [
        {"role": "tool", "tool_call_id": call.id or f"call-{number}", "content": result.content}
        for number, (call, result) in enumerate(zip(turn.tool_calls, turn.results, strict=True))
    ]


def count_tokens(job: Job, tokenizer: Tokenizer) -> int:
    """Count the tokens of the job's last prompt and reply together."""
    messages = list(job.messages)
    for turn in job.turns:
        messages.append(assistant_message(turn))
        messages += [*tool_messages(turn), *turn.said]
    return len(tokenizer.render(messages, job.tools, for_reply=False))


def find_divergence(known: Sequence[int], prompt: Sequence[int]) -> int | None:
    """Return the first position at which `prompt` differs from `known`; None if it extends it."""
    if tuple(prompt[: len(known)]) == tuple(known):
        return None
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(known, prompt, strict=False)))


def _common_suffix(one: Sequence[int], other: Sequence[int]) -> list[int]:
    pairs = zip(reversed(one), reversed(other), strict=False)
    suffix = [left for left, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    return suffix[::-1]


@dataclass(frozen=True, slots=True)
class TextJob:
    """A job whose chat is known. `replies[i]` is turn i's; `tokens` is the job's final context."""

    job: Job
    replies: tuple[list[int], ...]
    tokens: int

    def reply(self, turn: int) -> list[int]:
        """Return the ids of the turn's reply."""
        return self.replies[turn]


RecordedJob = TextJob | ContextJob


def record_text(jobs: Sequence[Job], tokenizer: Tokenizer) -> list[TextJob]:
    """Encode the jobs' replies. Raises InputError if the model's chat template cannot render one."""
    encoder = ReplyEncoder(tokenizer)
    return [TextJob(job, tuple(map(encoder.encode, job.turns)), count_tokens(job, tokenizer)) for job in jobs]


class PromptWriter:
    """Renders only what a turn adds to its chat, behind a short question, as chat templates put it behind a long chat.

    render([question], for_reply)                             question
    render([question, reply, results, said], for_reply)       question | reply | added
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._question = tokenizer.render([_QUESTION], for_reply=True)
        # By job: the first prompt, then what comes behind each reply.
        self._pieces: dict[str, list[list[int]]] = {}

    def write(self, recorded: RecordedJob) -> Iterator[list[int]]:
        """Write the prompt of each turn. A chat is as a server renders it, and is rendered once for all policies."""
        if isinstance(recorded, ContextJob):
            yield from recorded.prompts()
        else:
            yield from self._write_chat(recorded)

    def _write_chat(self, recorded: TextJob) -> Iterator[list[int]]:
        job = recorded.job
        if job.id not in self._pieces:
            added = map(self._added, job.turns[:-1], recorded.replies)
            self._pieces[job.id] = [self._tokenizer.render(job.messages, job.tools, for_reply=True), *added]
        prompt: list[int] = []
        for reply, piece in zip(([], *recorded.replies), self._pieces[job.id], strict=False):
            prompt = [*prompt, *reply, *piece]
            yield prompt

    def _added(self, turn: Turn, reply: list[int]) -> list[int]:
        chat = [_QUESTION, assistant_message(turn), *tool_messages(turn), *turn.said]
        rendered = self._tokenizer.render(chat, for_reply=True)
        known = [*self._question, *reply]
        if rendered[: len(known)] != known:
            raise InputError("the model's chat template changes a reply when the chat goes on; use another model")
        return rendered[len(known) :]
