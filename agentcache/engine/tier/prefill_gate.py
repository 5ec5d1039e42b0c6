"""Prefills wait for a few steps where they would take blocks that the CPU cache is yet to get.

What a long request leaves at its end is thousands of blocks, none of them stored, and a prefill takes hundreds a step.
A copy counts some steps after it began. Steps of decodes alone are short, and a block takes many times as long to
compute as to copy.
"""

from __future__ import annotations

from collections.abc import Callable

# At a stretch. Three steps of decodes and the copies beside them take about as long.
_MOST_S = 0.1


class PrefillGate:
    """Closed while the blocks that go next are not stored, but not for long."""

    def __init__(self, can_lose: Callable[[int], bool], clock: Callable[[], float]) -> None:
        """`can_lose` tells whether the next so many blocks are stored or not worth it, and has them stored if not."""
        self._can_lose = can_lose
        self._clock = clock
        self._closed_s: float | None = None

    def end_wait(self) -> None:
        """Note a step that no prefill waits for: the next one waits anew."""
        self._closed_s = None

    def is_open(self, blocks: int) -> bool:
        """Tell whether this step may take so many blocks."""
        if self._can_lose(blocks):
            self.end_wait()
            return True
        if self._closed_s is None:
            self._closed_s = self._clock()
        return self._clock() - self._closed_s >= _MOST_S
