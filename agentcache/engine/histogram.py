"""Counts values in buckets, and leaves the engine as plain values."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from agentcache.engine.jobs.views import HistogramCounts


class Histogram:
    """Counts by upper bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def view(self) -> HistogramCounts:
        """View the counts, cumulative by bound, with the sum of the values."""
        cumulative = tuple(accumulate(self._counts))
        return HistogramCounts(
            bounds=self._bounds, buckets=cumulative[:-1], count=cumulative[-1], total=round(self._total, 6)
        )
