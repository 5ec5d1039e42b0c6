"""Reads English text that is on every machine: the language reference that ships inside Python.

The tokenizer is trained on it and filler text is made of it, so nothing has to be downloaded.
"""

from __future__ import annotations

from functools import cache
from pydoc_data import topics


@cache
def read_corpus() -> str:
    """Read the language reference as plain text, about 0.5 million characters."""
    return "\n\n".join(topics.topics[name] for name in sorted(topics.topics))


@cache
def read_words() -> tuple[str, ...]:
    """Read the corpus's purely alphabetic words, in order, repeats kept so that frequencies are natural."""
    return tuple(word for word in read_corpus().split() if word.isalpha() and word.isascii())
