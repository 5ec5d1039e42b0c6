"""What API server and engine core keep of clients that send names, headers, tools and prompts at their largest."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator

from hostile_process import Server, run_server
from hostile_server import CHAT

# Headers have 1 MB in all at most.
_NAME = 200_000
_TOOLS = 64
_TOOL = 16_000
# Characters, of which a token of the tiny model has one; its context is shorter than most.
_PROMPT = 12_000
_AT_ONCE = 8


async def _ask(server: Server, number: int, chance: random.Random) -> int:
    def name(kind: str) -> str:
        return f"{kind} {number} " + "x" * _NAME

    headers = [(kind, name(kind)) for kind in ("X-Session-ID", "x-claude-code-agent-id", "X-Request-Id")]
    tools = [
        {"type": "function", "function": {"name": f"tool_{number}_{tool}", "description": "x" * _TOOL}}
        for tool in range(_TOOLS)
    ]
    text = "".join(chance.choices("abcdefgh ", k=chance.randint(_PROMPT // 2, _PROMPT)))
    body = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 1,
        "cache_salt": name("salt"),
        "user": name("user"),
        # The template shows them where they may be called, and the prompt is then too long.
        **({"tools": tools, "tool_choice": "none"} if number % 2 else {}),
    }
    return await server.ask(CHAT, body, headers=headers)


async def watch_served(minutes: float, every_s: float) -> AsyncIterator[tuple[object, ...]]:
    """A line every so many seconds: the seconds, the answers by their status, and the MB of server and core."""
    chance, numbers, answers = random.Random(0), itertools.count(), {200: 0}
    async with run_server(is_stock=False) as server:
        started_s = time.monotonic()
        for line in itertools.count():
            while (elapsed_s := time.monotonic() - started_s) < min(line * every_s, 60 * minutes):
                for status in await asyncio.gather(*(_ask(server, next(numbers), chance) for _ in range(_AT_ONCE))):
                    answers[status] = answers.get(status, 0) + 1
            reading = await server.read()
            others = sum(answers.values()) - answers[200]
            yield round(elapsed_s), answers[200], others, round(reading.server_mb), round(reading.core_mb)
            if elapsed_s >= 60 * minutes:
                return
