"""Agents' chats on vLLM's scheduler without a worker: messages with what the API server tells of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lone_scheduler import EOS, LoneScheduler
from steered_scheduler import SEARCH, tokens_of
from told_requests import mark

from agentcache.engine.constants import AGENT_ARGUMENT

Messages = list[tuple[str, list[int]]]

# What begins a reply.
HEAD = [7001, 7002]
SYSTEM = ("s", tokens_of(1, 60))
REPLY_TOKENS = 39


def render(messages: Messages) -> list[int]:
    """The prompt: each message ends with the end-of-turn token."""
    begun = ((HEAD if letter == "a" else [], words) for letter, words in messages)
    return [token for head, words in begun for token in (*head, *words, EOS)] + HEAD


def reply_of(name: str) -> list[int]:
    return tokens_of(sum(map(ord, name)), REPLY_TOKENS)


def begin(
    lone: LoneScheduler,
    name: str,
    messages: Messages,
    *,
    session: str | None = "s",
    is_answer: bool = False,
    agent: str | None = None,
    **options: Any,
) -> list[int]:
    """Ask, as SESSION/NAME; the prompt. The reply, which the name decides, calls a tool unless `is_answer`."""
    marks = mark(messages) | ({} if agent is None else {AGENT_ARGUMENT: agent})
    prompt = render(messages)
    calls = () if is_answer else (SEARCH,)
    reply = [*reply_of(name), EOS]
    lone.add(f"{session}/{name}", prompt, 100, calls=calls, reply=reply, marks=marks, session_id=session, **options)
    return prompt


def finish(lone: LoneScheduler) -> None:
    while not lone.idle:
        lone.scheduler.clock.now_s += 0.1
        lone.step()
        lone.scheduler.check_integrity()


def do(lone: LoneScheduler, name: str, messages: Messages, **options: Any) -> Messages:
    """A whole turn; the messages with its reply."""
    begin(lone, name, messages, **options)
    finish(lone)
    return [*messages, ("a", reply_of(name))]


def find_hashes(lone: LoneScheduler, messages: Messages) -> Sequence[bytes]:
    """Of the blocks that a turn of these messages, the last of which is its reply, leaves."""
    return lone.make_request("", [*render(messages[:-1]), *messages[-1][1]]).block_hashes
