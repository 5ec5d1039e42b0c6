"""The prompts of a recorded job as token ids. Those of a chat are made each of the one before and what comes behind."""

from __future__ import annotations

from collections.abc import Iterator

from agentcache.errors import InputError
from agentcache.jobs.context_job import ContextJob
from agentcache.jobs.recorded_job import RecordedJob, TextJob
from agentcache.jobs.recorded_reply import assistant_message
from agentcache.jobs.tokenizer import Tokenizer
from tool_runtime.agent.job import Message, Turn

_QUESTION: Message = {"role": "user", "content": "?"}


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


def tool_messages(turn: Turn) -> list[Message]:
    """Return the turn's results as messages of the API."""
    return [
        {"role": "tool", "tool_call_id": call.id or f"call-{number}", "content": result.content}
        for number, (call, result) in enumerate(zip(turn.tool_calls, turn.results, strict=True))
    ]
