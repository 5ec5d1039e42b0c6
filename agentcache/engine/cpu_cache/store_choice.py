"""Chooses what may be stored beside a step: blocks worth a copy, and when to look at victims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from agentcache.engine.blocks.block_queue import BlockQueue

# What is assumed of a class before any of its copies was fetched or lost.
_PRIOR_LOST, _PRIOR_FETCHED = 200, 200
# After so many blocks all that was seen counts for half, so that a class which was given up is tried again.
_WINDOW = 50_000
# Even where nothing is evicted the order changes as time goes by.
_LOOK_AGAIN_S = 0.5


class Usefulness:
    """Counts how many stored blocks were fetched before they were lost, by finish class (`FreeContext.finish_class`).

    A copy that is still in the CPU cache counts for nothing: its job may be about to come back. Contexts are stored
    by the thousand blocks; counted at once, every class would be given up at its first ones.
    """

    def __init__(self, least_share: float) -> None:
        """Take the share of fetched blocks under which the copies of a class cost more than they save."""
        self.least_share = least_share
        self._lost: Counter[int] = Counter()
        self._fetched: Counter[int] = Counter()
        self._seen = 0

    def is_useful(self, finish_class: int) -> bool:
        """Tell whether blocks of this class are worth a copy."""
        fetched = _PRIOR_FETCHED + self._fetched[finish_class]
        return fetched >= self.least_share * (fetched + _PRIOR_LOST + self._lost[finish_class])

    def note_avoided(self, blocks: int) -> None:
        """Note blocks that were not copied: time goes on."""
        self._seen += blocks
        if self._seen >= _WINDOW:
            self._seen = 0
            for counts in (self._lost, self._fetched):
                for finish_class in counts:
                    counts[finish_class] //= 2

    def note_lost(self, finish_classes: Iterable[int]) -> None:
        """Note the classes of blocks that the CPU cache alone had, and evicted."""
        self._note(self._lost, finish_classes)

    def note_fetched(self, finish_classes: Iterable[int]) -> None:
        """Note the classes of blocks that were fetched."""
        self._note(self._fetched, finish_classes)

    def _note(self, counts: Counter[int], finish_classes: Iterable[int]) -> None:
        before = counts.total()
        counts.update(finish_classes)
        self.note_avoided(counts.total() - before)


class LookTimes:
    """Knows when to look at the GPU's next victims: a look walks through all of them, and most steps change few."""

    def __init__(self, queue: BlockQueue, clock: Callable[[], float]) -> None:
        self._queue = queue
        self._clock = clock
        self._begun_s = -_LOOK_AGAIN_S
        self._evicted = 0
        self._wanted = 0
        self.is_awaited = False
        """Whether blocks were freed since the last look."""
        self.has_more = False
        """The last look found more than a step may copy."""

    def want(self, victims: int) -> None:
        """Ask for so many victims more than usual."""
        self._wanted = max(self._wanted, victims)

    def is_due(self, margin: int, *, idle: bool) -> bool:
        """Tell whether so many blocks went, or so much time, that others of the next `margin` are victims now.

        While the engine is idle time evicts nothing. It looks once at what requests have left: with copies that outlast
        the time to the next look, and more victims than the CPU cache has room for, it would copy for ever.
        """
        if self._wanted or self.has_more:
            return True
        if self.is_awaited if idle else self._clock() - self._begun_s >= _LOOK_AGAIN_S:
            return True
        return self._queue.evictions["capacity"].blocks - self._evicted >= margin // 4

    def begin(self) -> int:
        """Note that a look begins. Return how many victims more than usual are asked for."""
        self._begun_s, self._evicted = self._clock(), self._queue.evictions["capacity"].blocks
        wanted, self._wanted = self._wanted, 0
        self.is_awaited = self.has_more = False
        return wanted
