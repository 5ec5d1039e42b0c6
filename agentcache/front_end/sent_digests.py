"""Digests of what a client has sent: from tokens alone no engine can tell the client's changes from the server's.

Templates and servers render anew what the client repeats: they merge system messages, and hide earlier reasoning. A
digest has 8 hexadecimal digits: enough to see that a message is another.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any

import msgspec

from agentcache.engine.constants import SENT_ARGUMENT
from agentcache.engine.marks import MAX_MESSAGES
from agentcache.engine.vllm.requests import ChatCompletionRequest, ResponsesRequest

MAX_TOOLS = 512
# Parts of messages, tools, and bytes of each of the two. More would hold up the API server.
_MAX_PARTS = 4096
_MAX_BYTES = 4 * 2**20
_DIGEST_BYTES = 4
# Of a chat's message or an item of a response: s(ystem), u(ser), t(ool), a(ssistant), r: the same with its reasoning.
LETTERS = {"system": "s", "developer": "s", "tool": "t", "function": "t", "assistant": "a"}
# What a chat template is given beside messages and tools.
_OPTIONS = ("chat_template", "chat_template_kwargs", "documents", "reasoning_effort", "reasoning")
# vLLM's --exclude-tools-when-tool-choice-none, which no request tells.
_SERVER = {"excludes_tools": False}
# vLLM drops these lines of a client's, which have another hash in each request.
_DROPPED = "x-anthropic-billing-header"


def digest_chat(chat: ChatCompletionRequest, message: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what the engine is to know of a chat as its client sent it, for its extra arguments.

    `message` is the body of the Anthropic message that vLLM has made the chat of.
    """
    return _mark(chat, _write_messages(chat.messages if message is None else _list_messages(message)))


def digest_response(request: ResponsesRequest) -> dict[str, Any]:
    """Return the same of a request for a response: its instructions stand in front of the items, also without any."""
    items = [{"role": "user", "content": request.input}] if isinstance(request.input, str) else request.input
    return _mark(request, _write_messages([{"role": "system", "content": request.instructions}, *items]))


def note_excluded_tools(args: Namespace) -> None:
    """Note by the server's options whether templates are given the tools of requests that may call none."""
    _SERVER["excludes_tools"] = bool(getattr(args, "exclude_tools_when_tool_choice_none", False))


def _mark(request: ChatCompletionRequest | ResponsesRequest, messages: str | None) -> dict[str, Any]:
    is_shown = request.tool_choice != "none" or not _SERVER["excludes_tools"]
    tools = _write_tools((request.tools or ()) if is_shown else ())
    options = _digest_all([[getattr(request, name, None) for name in _OPTIONS]])
    if messages is None or tools is None or options is None:
        return {}
    return {SENT_ARGUMENT: {"messages": messages, "tools": tools, "options": options[0]}}


def _write_messages(messages: Iterable[Any]) -> str | None:
    """Write a letter and a digest a message, as far as the first 4,096; None where they cannot be told."""
    first = islice(messages, MAX_MESSAGES)
    shown = [message if isinstance(message, Mapping) else vars(message) for message in first]
    contents = (values.get("content") for values in shown)
    if sum(len(content) for content in contents if isinstance(content, list)) > _MAX_PARTS:
        return None
    digests = _digest_all([*_find_shown(values)] for values in shown)
    if digests is None:
        return None
    return "".join(_find_letter(values) + digest for values, digest in zip(shown, digests, strict=True))


def _write_tools(tools: Sequence[Any]) -> str | None:
    """Write a digest of the name and one of the definition a tool; of very many, what is beyond counts as one.

    None where they cannot be told.
    """
    if len(tools) > _MAX_PARTS:
        return None
    groups = [[tool] for tool in tools[: MAX_TOOLS - 1]] + ([[*rest]] if (rest := tools[MAX_TOOLS - 1 :]) else [])
    digests = _digest_all(part for group in groups for part in (list(map(_find_name, group)), group))
    return None if digests is None else "".join(digests)


def _find_name(tool: Any) -> Any:
    # A chat has functions in its tools; in a response they are its tools.
    return getattr(getattr(tool, "function", tool), "name", None)


def _find_letter(message: Mapping[str, Any]) -> str:
    role, kind, content = message.get("role"), str(message.get("type") or ""), message.get("content")
    parts = content if isinstance(content, list) else ()
    kinds = {_find_kind(part) for part in parts}
    if message.get("reasoning") or message.get("reasoning_content") or kind == "reasoning" or "thinking" in kinds:
        return "r"
    if kind.endswith("_output") or (kinds and kinds <= {"tool_result"}):
        return "t"
    return LETTERS.get(str(role), "u") if role else "a"


def _find_shown(message: Mapping[str, Any]) -> Iterator[Any]:
    """Find what a template may show; marks for another server's cache move from turn to turn."""
    for name, value in sorted(message.items()):
        if name == "content" and isinstance(value, list):
            yield name, [_find_text(part) for part in value]
        elif value is not None and name not in ("cache_control", "status"):
            yield name, value


def _find_text(part: Any) -> Any:
    values = part if isinstance(part, Mapping) else vars(part)
    if _find_kind(part) in ("text", "input_text", "output_text"):
        return values.get("text")
    return {name: value for name, value in values.items() if name != "cache_control"}


def _find_kind(part: Any) -> str:
    return str(part.get("type") if isinstance(part, Mapping) else getattr(part, "type", ""))


def _list_messages(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """List the messages with the system prompt in front, also without any, and without what vLLM drops of it."""
    blocks = body.get("system") or ()
    texts = [blocks] if isinstance(blocks, str) else [block.get("text") or "" for block in blocks]
    system = "".join(text for text in texts if not text.startswith(_DROPPED))
    # What else stands in a message vLLM passes over.
    messages = ({name: message.get(name) for name in ("role", "content")} for message in body["messages"])
    return [{"role": "system", "content": system}, *messages]


def _digest_all(values: Iterable[Any]) -> list[str] | None:
    """Digest values of JSON and of pydantic's models; None where they are large or deep, or have half a character."""
    hook: Callable[[Any], Any] = vars
    digests, left = [], _MAX_BYTES
    for value in values:
        try:
            encoded = msgspec.msgpack.encode(value, enc_hook=hook)
        except (RecursionError, UnicodeError, TypeError, OverflowError):
            return None
        left -= len(encoded)
        if left < 0:
            return None
        digests.append(blake2b(encoded, digest_size=_DIGEST_BYTES).hexdigest())
    return digests
