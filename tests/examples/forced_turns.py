"""Middleware of the server under test, which dictates the replies: the examples themselves stay as users run them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentcache.engine.constants import REPLY_ARGUMENT


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request as the client sent it, with lower-case header names, and the JSON that it was answered with."""

    method: str
    path: str
    headers: dict[str, str]
    request: dict[str, Any]
    answer: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Script:
    """`replies`, as token ids, are used up by chats and responses in turn; `exchanges` are all that were answered."""

    replies: deque[list[int]]
    exchanges: list[Exchange] = field(default_factory=list)


# vLLM makes the middleware, so what tests share with it is the module's: the script in force, if any.
_scripts: list[Script] = []


@contextmanager
def dictate(replies: Iterable[list[int]]) -> Iterator[Script]:
    """Only as long as this lasts does the middleware do anything."""
    _scripts.append(Script(deque(replies)))
    try:
        yield _scripts[0]
    finally:
        _scripts.clear()


class ForcedTurns:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _scripts:
            await self._app(scope, receive, send)
            return
        (script,) = _scripts
        request = await _read(receive)
        forced: list[Message] = [{"type": "http.request", "body": _force_reply(script, scope["path"], request)}]
        body = b""

        async def receive_forced() -> Message:
            return forced.pop() if forced else await receive()

        async def send_and_keep(message: Message) -> None:
            nonlocal body
            body += message.get("body", b"")
            if message["type"] == "http.response.body" and not message.get("more_body"):
                headers = {name.decode(): value.decode() for name, value in scope["headers"]}
                answer = json.loads(body or b"{}")
                script.exchanges.append(Exchange(scope["method"], scope["path"], headers, json.loads(request), answer))
            await send(message)

        await self._app(scope, receive_forced, send_and_keep)


async def _read(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body or b"{}"


def _force_reply(script: Script, path: str, request: bytes) -> bytes:
    if path not in ("/v1/chat/completions", "/v1/responses"):
        return request
    forced: dict[str, Any] = {"vllm_xargs": {REPLY_ARGUMENT: script.replies.popleft()}}
    if path == "/v1/chat/completions":
        forced["return_token_ids"] = True
    return json.dumps(json.loads(request) | forced).encode()
