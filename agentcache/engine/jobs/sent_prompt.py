"""What a client sent for a prompt, and what of it is another than for the turn before."""

from __future__ import annotations

from itertools import takewhile
from typing import Literal, NamedTuple

from agentcache.engine.constants import CONTINUES_ARGUMENT, SENT_ARGUMENT
from agentcache.engine.jobs.sent_digests import MAX_MESSAGES
from agentcache.engine.jobs.views import ChangeCause
from agentcache.engine.marks import read_mark
from agentcache.engine.vllm.types import Request

_MESSAGE = 9
_TOOL, _NAME = 16, 8


class SentPrompt(NamedTuple):
    """As digests, in the forms of `sent_digests`; `messages` None where no API server told any of them.

    `adapter` is the name and path of the LoRA adapter. With `continues` the server puts what it has stored between the
    first message, the instructions, and the others.
    """

    adapter: tuple[str, str] | None
    continues: bool = False
    messages: str | None = None
    tools: str = ""
    options: str = ""

    def texts(self) -> tuple[str, ...]:
        """Return all texts, of which clients decide how long they are."""
        return *(self.adapter or ()), self.messages or "", self.tools, self.options


def read_sent(request: Request) -> SentPrompt:
    """Read what the API server told of a request."""
    lora = request.lora_request
    adapter = (lora.lora_name, lora.lora_path) if lora is not None else None
    sent = read_mark(request, SENT_ARGUMENT)
    names = ("messages", "tools", "options")
    if not isinstance(sent, dict) or not all(isinstance(sent.get(name), str) for name in names):
        return SentPrompt(adapter)
    return SentPrompt(adapter, read_mark(request, CONTINUES_ARGUMENT) is not None, *(sent[name] for name in names))


def find_tool_change(before: SentPrompt, now: SentPrompt) -> ChangeCause | None:
    """Find what is another in the declared tools; None if nothing is, or that is not known."""
    if before.messages is None or now.messages is None or before.tools == now.tools:
        return None
    was, are = _cut(before.tools, _TOOL), _cut(now.tools, _TOOL)
    were_named, are_named = ([tool[:_NAME] for tool in tools] for tools in (was, are))
    if sorted(were_named) == sorted(are_named):
        return "tools reordered" if sorted(was) == sorted(are) else "tool text changed"
    return "tools left out" if set(are_named) < set(were_named) else "tools changed"


def find_message_change(before: SentPrompt, now: SentPrompt) -> ChangeCause | Literal["none", "unknown"]:
    """Find what is another in the messages of the turn before."""
    if before.messages is None or now.messages is None or (before.continues and not now.continues):
        return "unknown"
    was, are = _cut(before.messages, _MESSAGE), _cut(now.messages, _MESSAGE)
    if now.continues:
        # The client says again its instructions alone.
        was, are = was[:1], are[:1]
    repeated = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(was, are, strict=False)))
    if repeated == min(len(was), MAX_MESSAGES):
        return "none"
    # A system message further back is one among others: to leave a reminder out later is to edit the history.
    begins = {message[0] for message in was[:repeated]} <= {"s"}
    is_system = "s" in (was[repeated][0], *(message[0] for message in are[repeated : repeated + 1]))
    return "system message changed" if begins and is_system else "history changed"


def find_other_change(before: SentPrompt, now: SentPrompt) -> ChangeCause:
    """Find why a prompt changed though all messages and tools were repeated."""
    return "options changed" if before.options != now.options else "rendered anew"


def is_reply_hidden(before: SentPrompt, now: SentPrompt) -> bool:
    """Tell whether the server renders the last reply anew: it has stored it, or the template hides its reasoning.

    Templates hide the reasoning before the latest question. That the client left it out is its own change.
    """
    if now.continues:
        return True
    if before.messages is None or now.messages is None:
        return False
    letters = [message[0] for message in _cut(now.messages, _MESSAGE)[len(before.messages) // _MESSAGE :]]
    reply = [*takewhile(lambda letter: letter in "ar", letters)]
    return "r" in reply and "u" in letters[len(reply) :]


def _cut(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]
