"""A server on a loopback port that says what its requests dictate, as vLLM with our plug-in does.

A token is a character and the chat template is ChatML with Hermes tool calls; characters 1 and 2 begin and end a turn.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

MODEL, BLOCK_SIZE = "echo", 16
BEGIN, END = "\x01", "\x02"
REPLY_ARGUMENT = "agentcache_reply_token_ids"
_CALL = re.compile(r"\n<tool_call>(.*?)</tool_call>", re.DOTALL)
_RUN = re.compile(r"^[0-9a-f]{8}-")


def encode(text: str) -> list[int]:
    return [ord(character) for character in text]


def render(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, *, for_reply: bool) -> str:
    text = f"{BEGIN}tools\n{json.dumps(tools)}{END}" if tools else ""
    for message in messages:
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        body = (message["content"] or "") + "".join(map(_write_call, calls))
        text += f"{BEGIN}{message['role']}\n{body}{END}"
    return text + f"{BEGIN}assistant\n" if for_reply else text


@dataclass(slots=True)
class FakeServer:
    """What it does wrong is set before it is asked; `bodies` are the requests that came, `headers` theirs and those of
    whoever asked for the models.
    """

    url: str = ""
    follows_replies: bool = True
    parsed_calls: int = 99
    tells_cached: bool = True
    tokenizes: bool = True
    models: Any = field(default_factory=lambda: {"data": [{"id": MODEL, "max_model_len": 100_000}]})
    metrics: str = ""
    refused_jobs: set[str] = field(default_factory=set)
    stalled_jobs: set[str] = field(default_factory=set)
    on_request: Callable[[Mapping[str, Any]], None] = lambda body: None  # noqa: ARG005
    bodies: list[Mapping[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    _served: dict[str, list[int]] = field(default_factory=dict)

    async def list_models(self, request: Request) -> Response:
        self.headers.append(request.headers)
        return JSONResponse(self.models, status_code=404 if self.models is None else 200)

    async def show_metrics(self, _request: Request) -> Response:
        return PlainTextResponse(self.metrics, status_code=200 if self.metrics else 404)

    async def tokenize(self, request: Request) -> Response:
        body = await request.json()
        if "prompt" in body:
            return JSONResponse({"tokens": encode(body["prompt"])})
        calls = [call for message in body["messages"] for call in message.get("tool_calls") or ()]
        # vLLM takes the API's text only, though its templates then get the parsed object.
        if not self.tokenizes or not all(isinstance(call["function"]["arguments"], str) for call in calls):
            return _refuse(400, "1 validation error\narguments\n  Input should be a valid string")
        chat = render(body["messages"], body["tools"], for_reply=body["add_generation_prompt"])
        return JSONResponse({"tokens": encode(chat)})

    async def chat(self, request: Request) -> Response:
        self.headers.append(request.headers)
        self.bodies.append(body := await request.json())
        self.on_request(body)
        if (job := job_of(body)) in self.refused_jobs:
            return _refuse(500, "the engine is on fire")
        prompt = encode(render(body["messages"], body.get("tools"), for_reply=True))
        reply = body["vllm_xargs"][REPLY_ARGUMENT] if self.follows_replies else encode("No.")
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant"}, "finish_reason": "stop", "token_ids": reply}
            return JSONResponse(_envelope(choices=[choice], usage=self._usage(job, prompt, reply)))
        return StreamingResponse(self._stream(job, prompt, reply), media_type="text/event-stream")

    async def complete(self, request: Request) -> Response:
        self.headers.append(request.headers)
        self.bodies.append(body := await request.json())
        self.on_request(body)
        if (job := job_of(body)) in self.refused_jobs:
            return _refuse(500, "the engine is on fire")
        prompt, reply = body["prompt"], body["vllm_xargs"][REPLY_ARGUMENT]
        first = {"index": 0, "text": "", "finish_reason": None, "token_ids": [], "prompt_token_ids": prompt}
        rest = {"index": 0, "text": "...", "finish_reason": "length", "token_ids": reply[: body["max_tokens"]]}
        chunks = [{"choices": [first]}, {"choices": [rest]}, {"choices": [], "usage": self._usage(job, prompt, reply)}]
        events = [f"data: {json.dumps(_envelope(**chunk))}\n\n" for chunk in chunks]
        return StreamingResponse(self._stream_tokens(job, events), media_type="text/event-stream")

    async def _stream_tokens(self, job: str, events: list[str]) -> AsyncIterator[str]:
        yield events[0]
        if job in self.stalled_jobs:
            await asyncio.Event().wait()
        for event in (*events[1:], "data: [DONE]\n\n"):
            yield event

    async def _stream(self, job: str, prompt: list[int], reply: list[int]) -> AsyncIterator[str]:
        yield _event({"role": "assistant", "content": ""}, prompt_token_ids=prompt)
        if job in self.stalled_jobs:
            await asyncio.Event().wait()
        content = "".join(map(chr, reply)).removesuffix(END)
        if calls := _CALL.findall(content)[: self.parsed_calls]:
            content = _CALL.sub("", content)
        yield _event({"content": content}, token_ids=reply[: len(content)])
        for index, call in enumerate(map(json.loads, calls)):
            function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
            yield _event({"tool_calls": [{"index": index, "id": f"call-{index}", "function": function}]})
        yield _event({}, "tool_calls" if calls else "stop", token_ids=reply[len(content) :])
        yield _event(usage=self._usage(job, prompt, reply), metrics={"queue_time_ms": 2.0})
        yield "data: [DONE]\n\n"

    def _usage(self, job: str, prompt: list[int], reply: list[int]) -> dict[str, Any]:
        """A cache that never evicts: each job finds what its last turn left, in whole blocks."""
        pairs = zip(self._served.get(job, [])[:-1], prompt[:-1], strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self._served[job] = prompt + reply
        counts = {"prompt_tokens": len(prompt), "completion_tokens": len(reply), "total_tokens": len(prompt + reply)}
        cached = {"cached_tokens": shared // BLOCK_SIZE * BLOCK_SIZE}
        return counts | ({"prompt_tokens_details": cached} if self.tells_cached else {})


def job_of(body: Mapping[str, Any]) -> str:
    """The job that a request is of, behind what its run's sessions begin with; "" for none."""
    return _RUN.sub("", body.get("session_id", ""))


@contextmanager
def run_fake_server() -> Iterator[FakeServer]:
    """The server in a thread of its own; `url` ends in /v1."""
    fake = FakeServer()
    app = Starlette()
    app.add_route("/v1/models", fake.list_models)
    app.add_route("/metrics", fake.show_metrics)
    app.add_route("/tokenize", fake.tokenize, methods=["POST"])
    app.add_route("/v1/chat/completions", fake.chat, methods=["POST"])
    app.add_route("/v1/completions", fake.complete, methods=["POST"])
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        fake.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        yield fake
        server.should_exit = True
        thread.join(timeout=10)
        assert not thread.is_alive()


def _write_call(call: Mapping[str, Any]) -> str:
    given = call["arguments"]
    arguments = json.dumps(json.loads(given) if isinstance(given, str) else given)
    return f'\n<tool_call>{{"name": "{call["name"]}", "arguments": {arguments}}}</tool_call>'


def _envelope(**fields: Any) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": MODEL} | fields


def _event(delta: Mapping[str, Any] | None = None, finish_reason: str | None = None, **fields: Any) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "token_ids": fields.pop("token_ids", None)}
    return f"data: {json.dumps(_envelope(choices=[] if delta is None else [choice], **fields))}\n\n"


def _refuse(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "code": status}}, status_code=status)
