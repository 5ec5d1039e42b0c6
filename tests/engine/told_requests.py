"""Requests as the API server marks them: whose messages they have, which tools, which response they go on from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

from tracked_requests import BLOCK, Tracked
from vllm.v1.request import Request

from agentcache.engine.constants import (
    AGENT_ARGUMENT,
    CONTINUES_ARGUMENT,
    QUESTIONS_ARGUMENT,
    ROLES_ARGUMENT,
    SENT_ARGUMENT,
)
from agentcache.front_end.descriptions import find_questions

# What ends each message.
END = 3
# What begins a reply.
HEAD = [4, 5]


def digest(text: str) -> str:
    return f"{crc32(text.encode()):08x}"


def message(*words: int) -> list[int]:
    return [*words, END]


def ask_told(
    tracked: Tracked,
    name: str,
    messages: Sequence[tuple[str, Sequence[int]]],
    *,
    tools: Sequence[str] = (),
    after: str | None = None,
    sent: Sequence[str] | None = None,
    options_sent: str = "",
    agent: str | None = None,
    **options: Any,
) -> Request:
    """Ask with messages, each a role's letter and tokens, and the head of a reply behind them.

    `sent` are what its client sent, if the server renders other messages. A tool's name is its first letter.
    """
    prompt = [token for _, words in messages for token in message(*words)] + HEAD
    marks = mark(messages, sent, tools, options_sent)
    if agent is not None:
        marks[AGENT_ARGUMENT] = agent
    if after is not None:
        marks = {CONTINUES_ARGUMENT: after, SENT_ARGUMENT: marks[SENT_ARGUMENT]}
    return tracked.ask(name, prompt, marks=marks, end_of_turn=END, **options)


def mark(
    messages: Sequence[tuple[str, Sequence[int]]],
    sent: Sequence[str] | None = None,
    tools: Sequence[str] = (),
    options_sent: str = "",
) -> dict[str, Any]:
    """What the API server tells of a chat."""
    told = [(letter.replace("r", "a"), str(list(words))) for letter, words in messages]
    if sent is None:
        sent = [f"{letter} {words}" for letter, words in messages]
    return {
        ROLES_ARGUMENT: "".join(letter for letter, _ in told),
        QUESTIONS_ARGUMENT: list(find_questions(told)),
        SENT_ARGUMENT: {
            "messages": "".join(text[0] + digest(text) for text in sent),
            "tools": "".join(digest(tool[0]) + digest(tool) for tool in tools),
            "options": options_sent,
        },
    }


def answer(tracked: Tracked, request: Request, cached_tokens: int = 0) -> None:
    """Admit it, and end it with a reply of some tokens of its own."""
    tracked.admit(request, cached_tokens=cached_tokens)
    tracked.clock.now_s += 1
    tracked.reply(request, tokens=2 * BLOCK)
