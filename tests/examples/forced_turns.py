"""Middleware of the server under test, which dictates the replies: the examples themselves stay as users run them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
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
    """`replies`, as token ids, are used up by chat completions in turn; `exchanges` are all that were answered."""

    replies: deque[list[int]] = field(default_factory=deque)
    exchanges: list[Exchange] = field(default_factory=list)

    def start(self, replies: Iterable[list[int]]) -> None:
        """Forget what the last client left."""
        self.exchanges.clear()
        self.replies.clear()
        self.replies.extend(replies)


# vLLM makes the middleware, so what tests share with it is the module's.
SCRIPT = Script()


class ForcedTurns:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = await _read(receive)
        forced: list[Message] = [{"type": "http.request", "body": _force_reply(scope["path"], request)}]
        body = b""

        async def receive_forced() -> Message:
            return forced.pop() if forced else await receive()

        async def send_and_keep(message: Message) -> None:
            nonlocal body
            body += message.get("body", b"")
            if message["type"] == "http.response.body" and not message.get("more_body"):
                headers = {name.decode(): value.decode() for name, value in scope["headers"]}
                answer = json.loads(body or b"{}")
                SCRIPT.exchanges.append(Exchange(scope["method"], scope["path"], headers, json.loads(request), answer))
            await send(message)

        await self._app(scope, receive_forced, send_and_keep)


async def _read(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body or b"{}"


def _force_reply(path: str, request: bytes) -> bytes:
    if path != "/v1/chat/completions":
        return request
    forced = {"vllm_xargs": {REPLY_ARGUMENT: SCRIPT.replies.popleft()}, "return_token_ids": True}
    return json.dumps(json.loads(request) | forced).encode()
