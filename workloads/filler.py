"""Writes readable text of a wanted length in tokens, for sizes that were recorded without their text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from agentcache.models.corpus import read_words

# Token ids of a text. It may be a call to a server, so as few as possible are made.
Encode = Callable[[str], Sequence[int]]

# English prose under a byte-level BPE; only the first guess depends on it.
_CHARACTERS_PER_TOKEN = 6
# No tokenizer has longer tokens for prose; it bounds the search.
_MAX_CHARACTERS_PER_TOKEN = 60
_MAX_GUESSES = 16


def write_filler(tokens: int, encode: Encode, rng: np.random.Generator, wrap: Callable[[str], str] = str) -> str:
    """Write text so that `wrap(text)` has `tokens` tokens, within 2 tokens or 1 %; "" if the bare wrap has as many.

    The text is letters, spaces and full stops only, so quoting it in JSON or parsing tool calls never changes it.
    The same `rng` gives the same text whatever `encode` is; only where it stops differs.
    """
    bare = wrap("")
    overhead = len(encode(bare)) if bare and tokens > 0 else 0
    if overhead >= tokens:
        return ""
    sentences = _write_sentences(rng)
    prose, best, least_miss = "", "", math.inf
    size = _CHARACTERS_PER_TOKEN * (tokens - overhead)
    low, high = 0, _MAX_CHARACTERS_PER_TOKEN * (tokens - overhead)
    for _ in range(_MAX_GUESSES):
        prose = _extend(prose, size, sentences)
        text = _cut(prose, size)
        count = len(encode(wrap(text)))
        if abs(count - tokens) < least_miss:
            best, least_miss = text, abs(count - tokens)
        low, high = (low, size) if count > tokens else (size, high)
        if least_miss <= max(2, tokens // 100) or high - low < 2:
            break
        # Tokens grow almost evenly with characters, so the line through the bare wrap and this point is a good guess.
        size = round((tokens - overhead) * size / max(1, count - overhead))
        size = min(max(size, low + 1), high - 1)
    return best


def _cut(prose: str, size: int) -> str:
    return prose[: size - 1].rstrip(" .") + "."


def _extend(prose: str, size: int, sentences: Iterator[str]) -> str:
    parts, length = [prose], len(prose)
    while length < size:
        sentence = next(sentences) + " "
        parts.append(sentence)
        length += len(sentence)
    return "".join(parts)


def _write_sentences(rng: np.random.Generator) -> Iterator[str]:
    words = read_words()
    while True:
        picks = rng.integers(len(words), size=rng.integers(6, 17))
        sentence = " ".join(words[pick] for pick in picks)
        yield sentence[0].upper() + sentence[1:] + "."
