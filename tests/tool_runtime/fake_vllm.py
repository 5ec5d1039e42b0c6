"""A chat server in memory that streams what the test scripted, in vLLM's chunks, and keeps what it was sent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx2
from openai import AsyncOpenAI

Chunk = dict[str, Any]
# A stream is chunks, things to do between them, raw text, and at most one exception that breaks it off.
StreamItem = Chunk | Callable[[], None] | str | Exception
Answer = Sequence[StreamItem] | httpx2.Response | Exception

ROLE: Chunk = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}


def delta(finish_reason: str | None = None, token_ids: Sequence[int] | None = None, **fields: Any) -> Chunk:
    choice: Chunk = {"index": 0, "delta": fields, "finish_reason": finish_reason}
    if token_ids is not None:
        choice["token_ids"] = list(token_ids)
    return {"choices": [choice]}


def call_delta(index: int, arguments: str | None = None, *, id: str | None = None, name: str | None = None) -> Chunk:  # noqa: A002 - the wire's name
    piece: Chunk = {"index": index, "function": {"name": name, "arguments": arguments}}
    if id is not None:
        piece |= {"id": id, "type": "function"}
    return delta(tool_calls=[piece])


def usage(prompt: int, output: int, cached: int | None = None, metrics: Chunk | None = None) -> Chunk:
    details = None if cached is None else {"cached_tokens": cached}
    counts = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    chunk: Chunk = {"choices": [], "usage": counts | {"prompt_tokens_details": details}}
    return chunk if metrics is None else chunk | {"metrics": metrics}


def says(text: str) -> list[StreamItem]:
    """A reply that ends the job."""
    return [ROLE, delta(content=text), delta(finish_reason="stop"), usage(10, 2)]


def calls(*wanted: tuple[str, str, str], content: str | None = None) -> list[StreamItem]:
    """A reply that calls tools, given as (id, name, arguments)."""
    stream: list[StreamItem] = [ROLE]
    if content is not None:
        stream.append(delta(content=content))
    for index, (id_, name, arguments) in enumerate(wanted):
        stream += [call_delta(index, "", id=id_, name=name), call_delta(index, arguments)]
    return [*stream, delta(finish_reason="tool_calls"), usage(10, 5)]


def completes(*tokens: int, prompt: Sequence[int] = ()) -> list[StreamItem]:
    """A completion of these tokens, as the completions API streams it with token ids."""
    first = {"index": 0, "text": "", "finish_reason": None, "token_ids": [], "prompt_token_ids": list(prompt)}
    rest = {"index": 0, "text": "text", "finish_reason": "length", "token_ids": list(tokens)}
    metrics = {"queue_time_ms": 2.0, "time_to_first_token_ms": 30.0, "generation_time_ms": 400.0}
    return [{"choices": [first]}, {"choices": [rest]}, usage(len(prompt), len(tokens), 16, metrics)]


class FakeVllm:
    """Answers its requests with `answers`, in that order.

    `bodies` are their JSON, `paths` those of their URLs, `sessions` what their headers name.
    """

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.sessions: list[str] = []

    def client(self) -> AsyncOpenAI:
        # Retries are left at the library's default: switching them off is the business of the code under test.
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self._handle))
        return AsyncOpenAI(api_key="unused", base_url="http://vllm.test/v1", http_client=http)

    async def _handle(self, request: httpx2.Request) -> httpx2.Response:
        self.bodies.append(json.loads(request.content))
        self.paths.append(request.url.path)
        self.sessions.append(request.headers["X-Session-ID"])
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx2.Response):
            return answer
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=_Stream(answer))


class _Stream(httpx2.AsyncByteStream):
    def __init__(self, items: Sequence[StreamItem]) -> None:
        # One iterator for all: after [DONE] the client reads on to see the end of the body.
        self._bytes = self._play(items)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._bytes

    async def _play(self, items: Sequence[StreamItem]) -> AsyncIterator[bytes]:
        for item in items:
            if isinstance(item, Exception):
                raise item
            if isinstance(item, (dict, str)):
                yield encode(item)
            else:
                item()
        yield b"data: [DONE]\n\n"


def encode(item: Chunk | str) -> bytes:
    """One server-sent event; a chunk gets the fields that every chunk has."""
    if isinstance(item, str):
        return f"data: {item}\n\n".encode()
    if "error" not in item:
        item = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "m"} | item
    return f"data: {json.dumps(item)}\n\n".encode()


class FakeClock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
