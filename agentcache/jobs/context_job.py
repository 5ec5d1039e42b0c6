"""Jobs recorded without text: gives their blocks token ids that are equal exactly where the recorded blocks are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from agentcache.jobs.tokenizer import Tokenizer
from agentcache.models.corpus import read_words
from tool_runtime.agent.job import Context, Job
from tool_runtime.bounds import MAX_BLOCK_TOKENS

# More would not distinguish blocks better, and a server with a small context might not tokenize them.
_WORDS = 1000


class ContextWriter:
    """Gives every block its tokens, which depend only on its id and the vocabulary."""

    def __init__(self, vocabulary: Sequence[int]) -> None:
        # Objects, not numbers: prompts then share them, at 8 bytes a token, and compare quickly.
        self._vocabulary = np.array(vocabulary, dtype=object)

    def write(self, context: Context, start: int = 0, stop: int | None = None) -> list[int]:
        """Return the prompt's tokens from `start` up to `stop` or its end."""
        stop = context.tokens if stop is None else min(stop, context.tokens)
        size = context.block_tokens
        first = start // size
        blocks = np.array(context.blocks[first : -(-stop // size)], dtype=np.int64).view(np.uint64)
        numbers = blocks[:, np.newaxis] * np.uint64(MAX_BLOCK_TOKENS) + np.arange(size, dtype=np.uint64)
        return self._draw(numbers.ravel()[start - first * size : stop - first * size])

    def fill(self, name: str, count: int) -> list[int]:
        """Return `count` tokens that belong to no block, the same for the same name."""
        seed = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
        return self._draw(np.uint64(seed) + np.arange(count, dtype=np.uint64))

    def _draw(self, numbers: NDArray[np.uint64]) -> list[int]:
        tokens: list[int] = self._vocabulary[_mix(numbers) % np.uint64(len(self._vocabulary))].tolist()
        return tokens


@dataclass(frozen=True, slots=True)
class ContextJob:
    """A job whose turns all have a context. Its tokens are written when needed, and not kept."""

    job: Job
    writer: ContextWriter

    @property
    def tokens(self) -> int:
        """The largest context, of sub-agents too: a prompt and its reply."""
        contexts = (turn.context for each in self.job.family for turn in each.turns if turn.context is not None)
        return max(context.tokens + context.reply_tokens for context in contexts)

    def prompt(self, turn: int) -> list[int]:
        """Return the ids of the turn's prompt."""
        return self.writer.write(self._context(turn))

    def prompts(self) -> Iterator[list[int]]:
        """Write the ids of all turns' prompts, one after the other; what is as in the prompt before is copied."""
        before: list[int] = []
        for turn in range(len(self.job.turns)):
            context = self._context(turn)
            goes_on = turn > 0 and _goes_on(self._context(turn - 1), context)
            before = [*before, *self.writer.write(context, len(before))] if goes_on else self.writer.write(context)
            yield before

    def reply(self, turn: int) -> list[int]:
        """Return what follows this prompt in the next one, if that extends it; filler for the rest."""
        context = self._context(turn)
        told: list[int] = []
        if turn + 1 < len(self.job.turns) and _goes_on(context, following := self._context(turn + 1)):
            told = self.writer.write(following, context.tokens, context.tokens + context.reply_tokens)
        return told + self.writer.fill(f"{self.job.name}/{turn}", context.reply_tokens - len(told))

    def _context(self, turn: int) -> Context:
        context = self.job.turns[turn].context
        assert context is not None
        return context


def find_ordinary_tokens(tokenizer: Tokenizer) -> list[int]:
    """Find the tokens of plain English words: every tokenizer has them, and none is special."""
    words = islice(dict.fromkeys(read_words()), _WORDS)
    return sorted(set(tokenizer.encode(" ".join(words))))


def _goes_on(context: Context, following: Context) -> bool:
    """Tell whether the prompt of `following` is longer than that of `context` and begins with all of it."""
    blocks = -(-context.tokens // context.block_tokens)
    return (
        following.tokens > context.tokens
        and following.block_tokens == context.block_tokens
        and following.blocks[:blocks] == context.blocks[:blocks]
    )


def _mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply SplitMix64's finalizer: neighbours become unrelated, the same on every machine and version of NumPy."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))
