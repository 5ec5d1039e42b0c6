"""Names the sessions of clients that name none, and tells them the name, for those that can send a header back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentcache.server.client_sessions import SESSION_HEADER, find_cache_key, find_user_session

# Below the server's root path. What goes on from a stored response is followed by that one's id.
_PATHS = ("/v1/chat/completions", "/v1/messages")


class SessionNames:
    """ASGI middleware: with `router.name_sessions`, a chat without a session gets one, named by how it begins.

    All that is needed is in the chat, so every server gives it the same name. Chats that begin alike share it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, and name its session in the answer's `X-Session-ID` where we have named it."""
        if not _is_nameless_chat(scope):
            await self._app(scope, receive, send)
            return
        messages = await _read_body(receive)
        name = find_name(b"".join(message.get("body", b"") for message in messages))
        unread = iter(messages)

        async def receive_again() -> Message:
            return next(unread, None) or await receive()

        if name is None:
            await self._app(scope, receive_again, send)
            return

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[SESSION_HEADER] = name
            await send(message)

        header = SESSION_HEADER.lower().encode()
        # An empty header of that name would be found before ours.
        others = [(key, value) for key, value in scope["headers"] if key.lower() != header]
        await self._app({**scope, "headers": [*others, (header, name.encode())]}, receive_again, send_named)


def find_name(body: bytes) -> str | None:
    """Name a chat by its messages up to the first of the user; None if there is none, or the body names a session."""
    try:
        chat: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(chat, Mapping) or not isinstance(chat.get("messages"), list) or _names_session(chat):
        return None
    messages: list[Any] = chat["messages"]
    before = list(takewhile(lambda message: not _is_user(message), messages))
    if len(before) == len(messages):
        return None
    opening = [chat.get("cache_salt"), chat.get("system"), messages[: len(before) + 1]]
    text = json.dumps(opening, sort_keys=True, separators=(",", ":"))
    return f"begins-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _is_nameless_chat(scope: Scope) -> bool:
    if scope["type"] != "http" or not getattr(scope["app"].state, "agentcache_names_sessions", False):
        return False
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return scope["method"] == "POST" and path in _PATHS and not Headers(scope=scope).get(SESSION_HEADER)


def _names_session(chat: Mapping[str, Any]) -> bool:
    cache_key, user = find_cache_key(chat.get("prompt_cache_key")), find_user_session(chat.get("metadata"))
    return bool(chat.get("session_id") or cache_key or user)


def _is_user(message: Any) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "user"


async def _read_body(receive: Receive) -> list[Message]:
    messages = [await receive()]
    while messages[-1].get("more_body", False):
        messages.append(await receive())
    return messages
