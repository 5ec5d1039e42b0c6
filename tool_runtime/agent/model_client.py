"""Sends a request to the model, reads and times its reply, and retries while no token has come."""

from __future__ import annotations

import itertools
import json
import string
import textwrap
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast
from urllib.parse import quote

import openai
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk, ChatCompletionFunctionToolParam, ChatCompletionMessageParam

from tool_runtime.agent.job import Message
from tool_runtime.agent.reply import CompletionReader, Reply, ReplyReader

FIRST_BACKOFF_S = 0.5
_SESSION_HEADER = "X-Session-ID"

_Chunk = TypeVar("_Chunk")
_Chunk_contra = TypeVar("_Chunk_contra", contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcome:
    """One request as measured. `sent_s`, `first_token_s` and `finished_s` are the client's clock.

    `first_token_s` is the first generated output. Retries lie between `sent_s` and `first_token_s`. `reply` is what
    came, perhaps not all of it; `error` says whether it can be used.
    """

    job_id: str
    turn: int
    sent_s: float
    first_token_s: float | None
    finished_s: float
    reply: Reply
    retries: int = 0
    error: str | None = None


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


class _Reader(Protocol[_Chunk_contra]):
    @property
    def has_output(self) -> bool: ...

    def add(self, chunk: _Chunk_contra) -> None: ...

    def reply(self) -> Reply: ...


class ModelClient:
    """Asks one model, streaming: over the chat API, or over the completions API for what is known as tokens only.

    Whatever the server does wrong is an outcome, not a raise. The job's id, behind `session_prefix`, goes along as
    vLLM's `session_id`, and in the header by which routers keep a session at one server, with further `headers`.
    """

    def __init__(
        self,
        client: openai.AsyncOpenAI,
        model: str,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        max_retries: int = 2,
        session_prefix: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        # The client's own retries are invisible and would count as latency of the server.
        self._client = client.with_options(max_retries=0)
        self._model = model
        self._clock = clock
        self._sleep = sleep
        self._max_retries = max_retries
        self._session_prefix = session_prefix
        self._headers = headers or {}

    async def ask(
        self,
        job_id: str,
        turn: int,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
    ) -> RequestOutcome:
        """Ask for a chat reply; `options` are further fields of the request body."""

        def open_stream() -> Awaitable[openai.AsyncStream[ChatCompletionChunk]]:
            return self._client.chat.completions.create(
                model=self._model,
                messages=cast(Iterable[ChatCompletionMessageParam], messages),
                tools=cast(Iterable[ChatCompletionFunctionToolParam], tools) if tools else openai.omit,
                stream=True,
                stream_options={"include_usage": True},
                **self._extras(job_id, options),
            )

        return await self._request(job_id, turn, open_stream, ReplyReader)

    async def complete(
        self, job_id: str, turn: int, prompt: Sequence[int], options: Mapping[str, Any]
    ) -> RequestOutcome:
        """Complete `prompt`, token ids; `options` are further fields of the request body."""
        # As an argument the client would look at each token by itself: half a second for 22,000 of them, in which no
        # other request goes on. What the extra body holds is sent as it is, and takes the argument's place.
        body = {**options, "prompt": prompt}

        def open_stream() -> Awaitable[openai.AsyncStream[Completion]]:
            return self._client.completions.create(
                model=self._model,
                prompt="",
                stream=True,
                stream_options={"include_usage": True},
                **self._extras(job_id, body),
            )

        return await self._request(job_id, turn, open_stream, CompletionReader)

    def _extras(self, job_id: str, options: Mapping[str, Any]) -> dict[str, Any]:
        body = {"session_id": self._session_prefix + job_id, **options}
        # Headers are ASCII; a server takes the name from the body.
        header = quote(body["session_id"], safe=string.punctuation)
        return {"extra_body": body, "extra_headers": {_SESSION_HEADER: header, **self._headers}}

    async def _request(
        self,
        job_id: str,
        turn: int,
        open_stream: Callable[[], Awaitable[openai.AsyncStream[_Chunk]]],
        make_reader: Callable[[], _Reader[_Chunk]],
    ) -> RequestOutcome:
        sent_s = self._clock()
        for retries in itertools.count():
            attempt = await self._attempt(open_stream, make_reader())
            if retries >= self._max_retries or not attempt.may_be_retried:
                break
            await self._sleep(FIRST_BACKOFF_S * 2**retries)
        return RequestOutcome(
            job_id=job_id,
            turn=turn,
            sent_s=sent_s,
            first_token_s=attempt.first_token_s,
            finished_s=self._clock(),
            reply=attempt.reply,
            retries=retries,
            error=attempt.error,
        )

    async def _attempt(
        self, open_stream: Callable[[], Awaitable[openai.AsyncStream[_Chunk]]], reader: _Reader[_Chunk]
    ) -> _Attempt:
        first_token_s = None
        failure: Exception | None = None
        try:
            stream = await open_stream()
            async with stream:
                async for chunk in stream:
                    reader.add(chunk)
                    if first_token_s is None and reader.has_output:
                        first_token_s = self._clock()
        except (openai.APIError, json.JSONDecodeError) as error:
            failure = error
        return _Attempt(reader.reply(), first_token_s, failure)


def _describe(failure: Exception) -> str:
    """Describe the cause in one line."""
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
