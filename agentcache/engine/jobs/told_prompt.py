"""Reads what the API server tells of a prompt, and compares it with what the turn before was sent with.

The engine core cannot see in tokens whose messages a prompt is made of.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Literal, NamedTuple

from agentcache.engine.constants import (
    AGENT_ARGUMENT,
    CONTINUES_ARGUMENT,
    LEFT_ARGUMENT,
    QUESTIONS_ARGUMENT,
    ROLES_ARGUMENT,
    SENT_ARGUMENT,
)
from agentcache.engine.marks import read_mark
from agentcache.engine.observe.views import ChangeCause
from agentcache.engine.vllm.types import Request

ROLES = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
# Of so many messages, and no more, the front end tells who wrote them and what they say.
MAX_MESSAGES = 4096


class Questions(NamedTuple):
    """Digests of what a prompt asks, and of what the last reply in it was asked; None where there is no such message.

    They are of all messages of people and results of tools up to there. System messages and replies are left out:
    clients and templates write them anew. A reply that ends the prompt was begun by the client and answers nothing.
    """

    asked: str | None = None
    answered: str | None = None


def read_roles(request: Request) -> str:
    """Read the letters of the prompt's messages; empty if the API server did not send them."""
    roles = read_mark(request, ROLES_ARGUMENT)
    is_told = isinstance(roles, str) and len(roles) <= MAX_MESSAGES and ROLES.keys() >= set(roles)
    return roles if is_told else ""


def has_reply(roles: str) -> bool:
    """Tell whether messages hold an earlier reply. One that ends them is what the client has begun for the model."""
    return "a" in roles.rstrip("a")


def has_history(request: Request) -> bool:
    """Tell whether the prompt holds an earlier reply, so that it goes on from some turn."""
    return has_reply(read_roles(request))


def read_questions(request: Request) -> Questions:
    """Read digests of what the prompt asks; both None if the API server did not send them."""
    told = read_mark(request, QUESTIONS_ARGUMENT)
    is_known = isinstance(told, list) and len(told) == len(Questions())
    return Questions(*(each if isinstance(each, str) else None for each in told)) if is_known else Questions()


def read_agent(request: Request) -> str | None:
    """Read which agent of its session has sent the request; None where its client does not say."""
    agent = read_mark(request, AGENT_ARGUMENT)
    return agent if isinstance(agent, str) else None


def read_predecessor(request: Request) -> str | None:
    """Read the id of the response that the request says it goes on from."""
    response = read_mark(request, CONTINUES_ARGUMENT)
    return response if isinstance(response, str) else None


def read_left(request: Request) -> int:
    """Read how many tokens of the prompt the engine that the job has just left has cached; 0 if it has left none."""
    tokens = read_mark(request, LEFT_ARGUMENT)
    return tokens if type(tokens) is int and tokens > 0 else 0


_MESSAGE = 9
_TOOL, _NAME = 16, 8


class SentPrompt(NamedTuple):
    """As digests, in the forms of `front_end/sent_digests.py`; `messages` None where no API server told any of them.

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
