"""Tells by digests of messages what a client has done to the history of a turn: summarised, cut or edited it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Literal

from agentcache.engine.marks import MAX_MESSAGES, SentPrompt

# Characters of a message's digest, the first of which is the letter of its role.
MESSAGE = 9

HistoryChange = Literal["history summarised", "history truncated", "history edited", "history changed"]


def cut(text: str, size: int) -> list[str]:
    """Cut a text of digests into these."""
    return [text[start : start + size] for start in range(0, len(text), size)]


def has_same_start(before: SentPrompt | None, now: SentPrompt | None) -> bool:
    """Tell whether both prompts have the same system message and tools, as those of one agent have."""
    if before is None or now is None or not before.messages or not now.messages or now.continues:
        return False
    first = before.messages[:MESSAGE]
    return first[0] == "s" and now.messages.startswith(first) and before.tools == now.tools


def repeats_last_messages(before: SentPrompt | None, now: SentPrompt | None) -> bool:
    """Tell whether the last reply in a prompt stands where the turn's stood: behind the same result of a tool, or two.

    Results have the ids of their calls, so one is enough; of other messages there may be many alike.
    """
    if before is None or now is None or not before.messages or not now.messages:
        return False
    was, are = cut(before.messages, MESSAGE), cut(now.messages, MESSAGE)
    if max(len(was), len(are)) >= MAX_MESSAGES or len(head := _find_head(are)) == len(are):
        return False
    return (was[-1][0] == "t" and was[-1:] == head[-1:]) or (len(was) > 1 and was[-2:] == head[-2:])


def find_history_change(was: Sequence[str], are: Sequence[str]) -> HistoryChange:
    """Find what became of the messages of a turn in those of the prompt that goes on from it, and lacks some.

    A prompt without any reply goes on from a summary. Messages that went, more than reminders, were cut, or summarised
    if others stand in place of all up to the turn's last; as many others in their place were edited.
    """
    head = _find_head(are)
    same = _count_same(was, head)
    behind = _count_same(was[same:][::-1], head[same:][::-1])
    lost, new = was[same : len(was) - behind], head[same : len(head) - behind]
    if len(head) == len(are) and new:
        return "history summarised"
    if len(new) < len(lost) and any(message[0] != "s" for message in lost):
        return "history truncated" if behind or not new else "history summarised"
    return "history edited" if len(new) == len(lost) else "history changed"


def _find_head(messages: Sequence[str]) -> Sequence[str]:
    """Return the messages in front of the last reply; all if there is none."""
    end = len(messages)
    while end and messages[end - 1][0] not in "ar":
        end -= 1
    while end and messages[end - 1][0] in "ar":
        end -= 1
    return messages[:end] if any(message[0] in "ar" for message in messages[end:]) else messages


def _count_same(one: Sequence[str], other: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
