"""Puts a streamed reply together: chunks of the chat API or of the completions API in, one reply out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from openai.types import Completion, CompletionChoice, CompletionUsage
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import Choice, ChoiceDeltaToolCall

from tool_runtime.agent.job import ToolCall


@dataclass(frozen=True, slots=True)
class Reply:
    """The model's reply and the server's facts of it: counts in tokens, times in seconds, None if not told.

    `finish_reason` is None while the reply is incomplete.
    """

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    output_token_ids: tuple[int, ...] | None = None


@dataclass(slots=True)
class _CallPieces:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class _StreamReader:
    """Reads what both APIs tell alike. Fields that only vLLM sends are read where they are present."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._calls: dict[int, _CallPieces] = {}
        self._finish_reason: str | None = None
        self._usage: CompletionUsage | None = None
        self._metrics: Mapping[str, Any] = {}
        self._prompt_token_ids: tuple[int, ...] | None = None
        self._output_token_ids: list[int] | None = None
        self._has_output = False

    @property
    def has_output(self) -> bool:
        """Tell whether anything generated has come; the first chunk of a chat carries only the role."""
        return self._has_output

    def reply(self) -> Reply:
        """Return the reply as far as it has come."""
        usage = self._usage
        details = usage.prompt_tokens_details if usage else None
        return Reply(
            content="".join(self._content),
            tool_calls=tuple(
                ToolCall(pieces.name, "".join(pieces.arguments), pieces.id) for _, pieces in sorted(self._calls.items())
            ),
            finish_reason=self._finish_reason,
            prompt_tokens=usage.prompt_tokens if usage else None,
            output_tokens=usage.completion_tokens if usage else None,
            cached_tokens=details.cached_tokens if details else None,
            queue_s=self._seconds("queue_time_ms"),
            prefill_s=self._seconds("time_to_first_token_ms"),
            decode_s=self._seconds("generation_time_ms"),
            prompt_token_ids=self._prompt_token_ids,
            output_token_ids=None if self._output_token_ids is None else tuple(self._output_token_ids),
        )

    def _add_facts(self, chunk: ChatCompletionChunk | Completion) -> None:
        self._usage = chunk.usage or self._usage
        self._metrics = (chunk.model_extra or {}).get("metrics") or self._metrics

    def _add_prompt_ids(self, extra: Mapping[str, Any] | None) -> None:
        if extra and extra.get("prompt_token_ids") is not None:
            self._prompt_token_ids = tuple(extra["prompt_token_ids"])

    def _add_piece(self, choice: Choice | CompletionChoice, text: str | None) -> None:
        token_ids = (choice.model_extra or {}).get("token_ids")
        if token_ids is not None:
            self._output_token_ids = self._output_token_ids or []
            self._output_token_ids.extend(token_ids)
        if text:
            self._content.append(text)
        self._has_output |= bool(text or token_ids)
        self._finish_reason = choice.finish_reason or self._finish_reason

    def _seconds(self, name: str) -> float | None:
        milliseconds = self._metrics.get(name)
        return None if milliseconds is None else milliseconds / 1000


class ReplyReader(_StreamReader):
    """Takes the chunks of one chat in order."""

    def add(self, chunk: ChatCompletionChunk) -> None:
        """Take the next chunk."""
        self._add_facts(chunk)
        self._add_prompt_ids(chunk.model_extra)
        # Requests ask for one choice; the chunk with the usage has none.
        for choice in chunk.choices[:1]:
            delta = choice.delta
            self._add_piece(choice, delta.content)
            self._add_calls(delta.tool_calls or ())
            # Thinking models stream their reasoning first: it is generated, though no part of the message.
            self._has_output |= bool(delta.tool_calls or (delta.model_extra or {}).get("reasoning"))

    def _add_calls(self, deltas: Iterable[ChoiceDeltaToolCall]) -> None:
        for delta in deltas:
            pieces = self._calls.setdefault(delta.index, _CallPieces())
            # Arguments come in pieces, id and name whole; a server may repeat them in every delta.
            pieces.id = delta.id or pieces.id
            if delta.function:
                pieces.name = delta.function.name or pieces.name
                pieces.arguments.append(delta.function.arguments or "")


class CompletionReader(_StreamReader):
    """Takes the chunks of one completion in order."""

    def add(self, chunk: Completion) -> None:
        """Take the next chunk."""
        self._add_facts(chunk)
        for choice in chunk.choices[:1]:
            self._add_prompt_ids(choice.model_extra)
            self._add_piece(choice, choice.text)
