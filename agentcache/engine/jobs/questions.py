"""Reads what messages ask of the model, in short, to tell which turn a prompt goes on from in any template."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

# Of a digest: enough to tell the turns of one job apart.
_DIGEST_BYTES = 8
# Messages and their parts, and characters. To read more would hold up the API server.
MAX_PIECES = 8192
_MAX_CHARACTERS = 4 * 2**20


class Questions(NamedTuple):
    """Digests of what a prompt asks, and of what the last reply in it was asked; None where there is no such message.

    They are of all messages of people and results of tools up to there. System messages and replies are left out:
    clients and templates write them anew. A reply that ends the prompt was begun by the client and answers nothing.
    """

    asked: str | None = None
    answered: str | None = None


def find_questions(messages: Iterable[tuple[str, Any]]) -> Questions:
    """Find what messages ask, each given by its role's letter (`told_prompt.ROLES`) and its content.

    Of more than 8,192 messages and parts, or 4 million characters, nothing is found.
    """
    pieces, characters = MAX_PIECES, _MAX_CHARACTERS
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
