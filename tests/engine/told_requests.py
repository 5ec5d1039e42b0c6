"""Requests as the API server marks them: whose messages they have, which tools, which response they go on from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracked_requests import BLOCK, Tracked
from vllm.v1.request import Request

from agentcache.engine.constants import CONTINUES_ARGUMENT, ROLES_ARGUMENT, TOOLS_DECLARED_ARGUMENT

# What ends each message.
END = 3
# What begins a reply.
HEAD = [4, 5]


def message(*words: int) -> list[int]:
    return [*words, END]


def ask_told(
    tracked: Tracked,
    name: str,
    messages: Sequence[tuple[str, Sequence[int]]],
    *,
    tools: Sequence[str] | None = None,
    after: str | None = None,
    **options: Any,
) -> Request:
    """Ask with messages, each a role's letter and tokens, and the head of a reply behind them."""
    prompt = [token for _, words in messages for token in message(*words)] + HEAD
    marks: dict[str, Any] = {ROLES_ARGUMENT: "".join(letter for letter, _ in messages)}
    if tools is not None:
        marks[TOOLS_DECLARED_ARGUMENT] = list(tools)
    if after is not None:
        marks = {CONTINUES_ARGUMENT: after}
    return tracked.ask(name, prompt, marks=marks, end_of_turn=END, **options)


def answer(tracked: Tracked, request: Request, cached_tokens: int = 0) -> None:
    """Admit it, and end it with a reply of some tokens of its own."""
    tracked.admit(request, cached_tokens=cached_tokens)
    tracked.clock.now_s += 1
    tracked.reply(request, tokens=2 * BLOCK)
