"""Describes a request to the engine core, which sees tokens alone: its messages, in short, and its tools.

By what messages ask the engine tells which turn a prompt goes on from, in any template.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any

from agentcache.engine.constants import (
    CONTINUES_ARGUMENT,
    QUESTIONS_ARGUMENT,
    ROLES_ARGUMENT,
    TOOL_CHOICE_ARGUMENT,
    TOOLS_DECLARED_ARGUMENT,
)
from agentcache.engine.marks import MAX_MESSAGES, Questions
from agentcache.engine.vllm.requests import ChatCompletionRequest, ResponsesRequest
from agentcache.front_end.sent_digests import LETTERS, MAX_TOOLS, digest_chat, digest_response
from tool_runtime.learning.tool_key import key_name

# Of a digest: enough to tell the turns of one job apart.
_DIGEST_BYTES = 8
# Messages and their parts, and characters. To read more would hold up the API server.
_MAX_PIECES = 8192
_MAX_CHARACTERS = 4 * 2**20


def describe_chat(chat: ChatCompletionRequest, message: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Build the marks of a chat. `message` is the body of the Anthropic message that vLLM has made the chat of."""
    return {**_describe(chat.messages), **digest_chat(chat, message), **describe_tools(chat)}


def describe_response(response: ResponsesRequest) -> dict[str, Any]:
    """Build the marks of a request for a response."""
    digests = {**digest_response(response), **describe_tools(response)}
    if response.previous_response_id:
        # The server puts the messages before those of the request.
        return {CONTINUES_ARGUMENT: response.previous_response_id, **digests}
    given = response.input
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    instructions = [{"role": "system"}] if response.instructions else []
    return {**_describe([*instructions, *items]), **digests}


def _describe(items: Iterable[Any]) -> dict[str, Any]:
    """Build the marks that describe messages, or the items of a response."""
    messages = list(islice(_find_messages(items), _MAX_PIECES + 1))
    return {
        ROLES_ARGUMENT: "".join(letter for letter, _ in messages[:MAX_MESSAGES]),
        QUESTIONS_ARGUMENT: list(find_questions(messages)),
    }


def _find_messages(items: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the letter and content of each message. A response's reasoning, text and calls in a row are one reply."""
    was_part = False
    for item in items:
        values: Any = item if isinstance(item, Mapping) else vars(item)
        role, kind = values.get("role"), str(values.get("type", ""))
        if isinstance(role, str) and kind in ("", "message", "None") and role != "assistant":
            was_part = False
            yield LETTERS.get(role, "u"), values.get("content")
        elif kind.endswith("_output"):
            was_part = False
            yield "t", values.get("output")
        else:
            if not (was_part and kind):
                yield "a", None
            was_part = bool(kind)


def find_questions(messages: Iterable[tuple[str, Any]]) -> Questions:
    """Find what messages ask, each given by its role's letter (`marks.ROLES`) and its content.

    Of more than 8,192 messages and parts, or 4 million characters, nothing is found.
    """
    pieces, characters = _MAX_PIECES, _MAX_CHARACTERS
    everything = _hash()
    asked: str | None = None
    answered: str | None = None
    is_answered = False
    for letter, content in messages:
        pieces -= 1 + (len(content) if isinstance(content, list) else 0)
        if pieces < 0:
            return Questions()
        if letter == "a":
            is_answered = True
        elif letter != "s":
            if is_answered:
                answered, is_answered = asked, False
            text = f"{letter} {_read_text(content)}"
            characters -= len(text)
            if characters < 0:
                return Questions()
            everything.update(_hash(text.encode("utf-8", "surrogatepass")).digest())
            asked = everything.hexdigest()
    return Questions(asked, answered)


def _hash(data: bytes = b"") -> Any:
    return blake2b(data, digest_size=_DIGEST_BYTES)


def _read_text(content: Any) -> str:
    """Read the text of a message. The same text may come once as it is, and once as a list of parts with marks."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(map(_read_part, content)) if isinstance(content, list) else str(content)


def _read_part(part: Any) -> str:
    if not isinstance(part, Mapping):
        return str(part)
    text = part.get("text")
    return text if isinstance(text, str) else json.dumps(part, sort_keys=True, default=str)


def describe_tools(request: Any) -> dict[str, Any]:
    """Build the marks that tell the engine which tools a chat or response may call; none if it may call none."""
    if not request.tools or request.tool_choice == "none":
        return {}
    return {TOOLS_DECLARED_ARGUMENT: _name_tools(request.tools), **_mark_choice(request.tool_choice)}


def _mark_choice(choice: Any) -> dict[str, bool | str]:
    """Mark what must be called: `choice` is "auto", "required", or names a tool as a chat's or a response's does."""
    if choice == "required":
        return {TOOL_CHOICE_ARGUMENT: True}
    name = getattr(getattr(choice, "function", choice), "name", None)
    return {TOOL_CHOICE_ARGUMENT: name} if isinstance(name, str) else {}


def _name_tools(tools: Sequence[Any]) -> list[str] | bool:
    """Name the tools; True where some are the server's own, which go by other names in a reply, or very many."""
    if len(tools) > MAX_TOOLS or any(tool.type != "function" for tool in tools):
        return True
    # A chat has functions in its tools; in a response they are its tools. A client's names may have any length.
    return [key_name(getattr(tool, "function", tool).name) for tool in tools]
