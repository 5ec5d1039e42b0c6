"""What workers report of copies: one has ended when it has at all of them, and failed if it has at any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from agentcache.engine.tier.worker import CopiesDone

# By the number of each copy that has ended, the seconds that it took, of all workers; None if it failed.
Ended = Mapping[int, float | None]


class CopyReports:
    """Adds up what is reported step by step: workers do not end a copy in the same step."""

    def __init__(self, workers: int) -> None:
        """Take how many workers make each copy."""
        self._workers = workers
        self._ended: Counter[int] = Counter()
        self._failed: set[int] = set()
        self._seconds: dict[int, float] = {}

    def add(self, done: CopiesDone) -> tuple[Ended, Ended]:
        """Add what was reported since the last call, and return the stores and the fetches that have ended by it."""
        self._failed |= done.failed
        for number, seconds in done.seconds.items():
            self._seconds[number] = self._seconds.get(number, 0.0) + seconds
        return self._find_ended(done.completed_store_events), self._find_ended(done.completed_loads)

    def _find_ended(self, counts: Mapping[int, int]) -> Ended:
        self._ended.update(counts)
        return {number: self._take(number) for number in counts if self._ended[number] == self._workers}

    def _take(self, number: int) -> float | None:
        del self._ended[number]
        seconds = self._seconds.pop(number, 0.0)
        if number not in self._failed:
            return seconds
        self._failed.discard(number)
        return None
