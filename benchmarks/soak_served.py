"""What API server and engine core keep of clients that send names, headers, tools and prompts at their largest."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from hostile_process import Server, run_server
from hostile_server import CHAT
from tokenizers import Tokenizer

from agentcache.models.catalog import resolve_model

# Headers have 1 MB in all at most.
_NAME = 150_000
_TOOLS = 64
_TOOL_NAME = 12_000
_TOOL_TEXT = 16_000
# All prompts have one length, and are asked one after the other: with others the engine core grows on the CPU, under
# stock vLLM as much, and that would hide what we keep.
_WORDS = 2_250
# More than the context takes.
_TOO_MANY_WORDS = 20 * _WORDS
_IDLE_S = 20.0
# Clients come back when an idle job is over.
_AWAY_S = 2 * _IDLE_S
# It shows no tools: they could not be so large otherwise.
_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content or message.tool_calls }}\n{% endfor %}"
_OPTIONS = ("--chat-template", _TEMPLATE)


class Clients:
    """Sessions that call a tool, each with names and tools of its own, and then do one of five things."""

    def __init__(self, server: Server) -> None:
        """Begin without sessions."""
        self.statuses: Counter[int] = Counter()
        self.returns = self.ends = 0
        self._server = server
        self._numbers, self._texts = itertools.count(), itertools.count()
        self._tokenizer = Tokenizer.from_file(str(Path(resolve_model("tiny").path) / "tokenizer.json"))
        # When each session asks again that is idle for longer than its job is kept.
        self._away: deque[tuple[float, int]] = deque()

    async def go_on(self) -> None:
        """Have a new session ask, or one that is due to come back."""
        if self._away and self._away[0][0] <= time.monotonic():
            self.returns += 1
            await self._end(self._away.popleft()[1])
            return
        number = next(self._numbers)
        fate = number % 5
        if fate == 0:
            # Longer than the context, so it is refused behind the parsing of it all.
            await self._ask(number, self._write(_TOO_MANY_WORDS))
        elif fate == 1:
            leaving = asyncio.ensure_future(self._ask(number, self._write()))
            await asyncio.wait({leaving}, timeout=0.5)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
        else:
            await self._ask(number, self._write())
            if fate == 2:
                await self._end(number)
            elif fate == 3:
                self._away.append((time.monotonic() + _AWAY_S, number))

    async def _end(self, number: int) -> None:
        """Ask with the tool's result, and say that the session is over."""
        self.ends += 1
        await self._ask(number, self._write(), [("x-dynamo-session-final", "true")])

    async def _ask(self, number: int, text: str, headers: Iterable[tuple[str, str]] = ()) -> None:
        def name(kind: str) -> str:
            return f"{kind} {number} " + "x" * _NAME

        call = f'<tool_call>\n{{"name": "{_name_tool(number, 0)}", "arguments": {{}}}}\n</tool_call><|im_end|>'
        reply = self._tokenizer.encode(call, add_special_tokens=False).ids
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": len(reply),
            # vLLM's bound.
            "cache_salt": name("salt")[:128],
            "user": name("user"),
            "tools": [_make_tool(_name_tool(number, tool)) for tool in range(_TOOLS)],
            "vllm_xargs": {"agentcache_reply_token_ids": reply},
        }
        names = [(kind, name(kind)) for kind in ("X-Session-ID", "x-claude-code-agent-id", "X-Request-Id")]
        self.statuses[await self._server.ask(CHAT, body, headers=[*names, *headers])] += 1

    def _write(self, words: int = _WORDS) -> str:
        """Write a text that no other begins with."""
        return f"{next(self._texts):08d} " + "ab " * words


def _name_tool(number: int, tool: int) -> str:
    """Name a tool of a session; the one that is called has a short name, as its reply is generated."""
    return f"tool_{number}_{tool}" + "x" * (_TOOL_NAME if tool else 0)


def _make_tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "x" * _TOOL_TEXT}}


async def watch_served(minutes: float, every_s: float, *, is_stock: bool) -> AsyncIterator[tuple[object, ...]]:
    """Give a line every so many seconds: the seconds, what the clients did, and the MB of server and core.

    Stock vLLM writes replies of its own, as long as those that call a tool.
    """
    knobs = {"forced_replies": True, "runtime": {"max_idle_s": _IDLE_S}}
    async with run_server(is_stock=is_stock, options=_OPTIONS, knobs=knobs) as server:
        clients, started_s = Clients(server), time.monotonic()
        for line in itertools.count():
            while (elapsed_s := time.monotonic() - started_s) < min(line * every_s, 60 * minutes):
                await clients.go_on()
            reading = await server.read()
            accepted = clients.statuses[200]
            refused = clients.statuses.total() - accepted
            did = (accepted, refused, clients.ends, clients.returns)
            yield round(elapsed_s), *did, round(reading.server_mb), round(reading.core_mb)
            if elapsed_s >= 60 * minutes:
                return
