"""Which blocks are worth a copy: of requests that finished alike, how many were fetched before they were lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

# What is assumed of a class before any of its copies was fetched or lost.
_PRIOR_LOST, _PRIOR_FETCHED = 200, 200
# After so many blocks all that was seen counts for half, so that a class which was given up is tried again.
_WINDOW = 50_000


class Usefulness:
    """Counts blocks by their finish class (`FreeContext.finish_class`).

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
