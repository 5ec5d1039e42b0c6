"""Draws the sizes to measure, over several orders of magnitude, so that no term of a cost model is left open."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from agentcache.policy.step_cost import Row

# The cost model charges the square of l1 although l1 is cached: longer ones would spoil k5, and with it what it says
# that a block costs.
MAX_L1 = 1024
MAX_DECODES = 256
_PREFILLS_PER_BATCH = 2
# By its rows alone, a step that ends the prompt with a single token would be taken for a decode.
_SHORTEST_PREFILL = 2


class PrefillPoint(NamedTuple):
    """A prompt of l1 cached, q1 computed, l2 cached and q2 computed tokens. l2 is 0 when q2 is."""

    l1: int
    q1: int
    l2: int
    q2: int


class BatchPoint(NamedTuple):
    """Running decodes, each with `context` tokens of its own: by themselves, and with each of the prefills."""

    decodes: int
    context: int
    prefills: tuple[Row, ...]


Point = PrefillPoint | BatchPoint


@dataclass(frozen=True, slots=True)
class Limits:
    """In tokens: the longest prompt, a step, and the contexts of all decodes of a batch together."""

    max_tokens: int
    step_tokens: int
    batch_tokens: int
    max_seqs: int
    block_size: int


class PointSource:
    """Draws points within the limits; the same for the same seed."""

    def __init__(self, limits: Limits, seed: int) -> None:
        self._limits = limits
        self._random = random.Random(seed)

    def make(self, count: int) -> list[Point]:
        """Make the points. Kinds take turns, so that a run that is cut short has some of each."""
        kinds: tuple[Callable[[], Point], ...] = (
            self._cold,
            self._segments,
            self._batch,
            self._prefix,
            self._segments,
            self._segments,
        )
        return [draw() for draw in itertools.islice(itertools.cycle(kinds), count)]

    def _cold(self) -> PrefillPoint:
        """Draw a prefill with nothing cached, or a short prefix, and one long computation."""
        l1 = self._l1()
        return PrefillPoint(l1, self._draw(_SHORTEST_PREFILL, self._limits.max_tokens - l1 - 1), 0, 0)

    def _prefix(self) -> PrefillPoint:
        """Draw a cached prefix, an l2 with nothing in front of it: its square is not charged."""
        longest = self._limits.max_tokens
        return PrefillPoint(0, 0, self._blocks(3 * longest // 4), self._draw(_SHORTEST_PREFILL, longest // 8))

    def _segments(self) -> PrefillPoint:
        longest = self._limits.max_tokens
        q1, l2 = self._blocks(longest // 4), self._blocks(longest // 2)
        return PrefillPoint(self._l1(), q1, l2, self._draw(_SHORTEST_PREFILL, longest // 8 - 1))

    def _batch(self) -> BatchPoint:
        limits = self._limits
        # With async scheduling, the prompt of the step before may still count beside the next one.
        most = (MAX_DECODES, limits.max_seqs - 2, limits.step_tokens // 4, limits.batch_tokens // limits.block_size)
        decodes = self._draw(1, min(most))
        context = self._blocks(min(limits.max_tokens // 2, limits.batch_tokens // decodes))
        longest = min(limits.step_tokens - decodes, limits.max_tokens // 2 - 1)
        rows = (
            Row(self._draw(_SHORTEST_PREFILL, longest), self._blocks(limits.max_tokens // 2))
            for _ in range(_PREFILLS_PER_BATCH)
        )
        return BatchPoint(decodes, context, tuple(rows))

    def _l1(self) -> int:
        longest = min(MAX_L1, self._limits.max_tokens // 8)
        return self._random.choice((0, self._blocks(longest)))

    def _draw(self, low: int, high: int) -> int:
        """Draw a number; every order of magnitude is as likely."""
        return round(math.exp(self._random.uniform(math.log(low), math.log(max(low, high)))))

    def _blocks(self, high: int) -> int:
        """Round to the tokens of whole blocks, at least one."""
        size = self._limits.block_size
        return size * self._draw(1, max(1, high // size))
