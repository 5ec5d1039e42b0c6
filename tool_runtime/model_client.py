"""One request to the model: sent, read, timed, and tried again while nothing has come of it."""

from __future__ import annotations

import itertools
import json
import textwrap
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import openai
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam

from tool_runtime.job import Message
from tool_runtime.reply import Reply, ReplyReader

FIRST_BACKOFF_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcome:
    """What was measured of one request. `sent_s`, `first_token_s` and `finished_s` are the client's clock.

    `first_token_s` is the first generated output. Retries lie between `sent_s` and `first_token_s`. Counts,
    durations in the server (`queue_s`, `prefill_s`, `decode_s`) and token ids are None where it did not tell them.
    """

    job_id: str
    turn: int
    sent_s: float
    first_token_s: float | None
    finished_s: float
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    prompt_token_ids: tuple[int, ...] | None
    output_token_ids: tuple[int, ...] | None
    finish_reason: str | None
    retries: int
    error: str | None


@dataclass(frozen=True, slots=True)
class _Attempt:
    reply: Reply
    first_token_s: float | None
    failure: Exception | None

    @property
    def may_be_retried(self) -> bool:
        # A timeout is the user's limit. Once tokens were produced, a second try would measure a warmed cache.
        lost = isinstance(self.failure, openai.APIConnectionError)
        return lost and not isinstance(self.failure, openai.APITimeoutError) and self.first_token_s is None

    @property
    def error(self) -> str | None:
        if self.failure is not None:
            return _describe(self.failure)
        if self.reply.finish_reason is None:
            return "the stream ended before the reply was complete"
        if self.reply.finish_reason == "abort":
            return "the server aborted the request"
        return None


class ModelClient:
    """Asks one model over the chat API, streaming."""

    def __init__(
        self,
        client: openai.AsyncOpenAI,
        model: str,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        max_retries: int,
    ) -> None:
        # The client's own retries are invisible and would count as latency of the server.
        self._client = client.with_options(max_retries=0)
        self._model = model
        self._clock = clock
        self._sleep = sleep
        self._max_retries = max_retries

    async def ask(
        self,
        job_id: str,
        turn: int,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
    ) -> tuple[Reply, RequestOutcome]:
        """The reply, as far as it came, and its measurement, whose `error` says whether it can be used.

        `options` are further fields of the request body. Whatever the server does wrong is an outcome, not a raise.
        """
        sent_s = self._clock()
        body = {"session_id": job_id, **options}
        for retries in itertools.count():
            attempt = await self._attempt(messages, tools, body)
            if retries >= self._max_retries or not attempt.may_be_retried:
                break
            await self._sleep(FIRST_BACKOFF_S * 2**retries)
        reply = attempt.reply
        return reply, RequestOutcome(
            job_id=job_id,
            turn=turn,
            sent_s=sent_s,
            first_token_s=attempt.first_token_s,
            finished_s=self._clock(),
            prompt_tokens=reply.prompt_tokens,
            output_tokens=reply.output_tokens,
            cached_tokens=reply.cached_tokens,
            queue_s=reply.queue_s,
            prefill_s=reply.prefill_s,
            decode_s=reply.decode_s,
            prompt_token_ids=reply.prompt_token_ids,
            output_token_ids=reply.output_token_ids,
            finish_reason=reply.finish_reason,
            retries=retries,
            error=attempt.error,
        )

    async def _attempt(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], body: Mapping[str, Any]
    ) -> _Attempt:
        reader = ReplyReader()
        first_token_s = None
        failure: Exception | None = None
        try:
            stream = await self._client.chat.completions.create(
                model=self._model,
                messages=cast(Iterable[ChatCompletionMessageParam], messages),
                tools=cast(Iterable[ChatCompletionFunctionToolParam], tools) if tools else openai.omit,
                stream=True,
                stream_options={"include_usage": True},
                extra_body=body,
            )
            async with stream:
                async for chunk in stream:
                    reader.add(chunk)
                    if first_token_s is None and reader.has_output:
                        first_token_s = self._clock()
        except (openai.APIError, json.JSONDecodeError) as error:
            failure = error
        return _Attempt(reader.reply(), first_token_s, failure)


def _describe(failure: Exception) -> str:
    """The cause in one line."""
    text = str(failure)
    match failure:
        case openai.APIStatusError(body={"message": str(message)}):
            text = f"HTTP {failure.status_code}: {message}"
        case openai.APIStatusError():
            text = f"HTTP {failure.status_code}: {failure.body or failure.response.reason_phrase}"
        case openai.APITimeoutError():
            text = "the server did not answer within the client's timeout"
        case openai.APIConnectionError():
            text = f"connection lost: {failure.__cause__ or failure.message}"
        case openai.APIError():
            text = f"the server broke off the stream: {failure.message}"
        case json.JSONDecodeError():
            text = f"the stream is not JSON: {failure.msg}"
    return textwrap.shorten(text, 300)
