"""Chooses the gaps that a request has filled, and the cached blocks that are cheaper to compute again.

A request's full blocks, by index, and what the cache holds of them:

    | cached prefix |  gap  | segment |   gap   | segment | tail
    0               p       a         b         c         d     n

A fill request computes a gap; the request itself computes from the end of the last cached segment that is kept. A
segment that is not kept becomes part of the gap around it. Blocks are counted, not tokens; intervals are half open. In
the code `islands` are the cached segments behind the prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agentcache.policy.price import RecomputeCost


class Interval(NamedTuple):
    """Blocks `start` to `end` - 1 of a request."""

    start: int
    end: int

    @property
    def blocks(self) -> int:
        """Return the number of blocks."""
        return self.end - self.start


# A block of a request: its index, and its group of layers.
Place = tuple[int, int]


class Hits(NamedTuple):
    """The cached prefix in blocks, and the cached segments behind it, in order."""

    prefix: int
    islands: tuple[Interval, ...]


class SegmentPlan(NamedTuple):
    """Gaps to fill, in order, the cached segment behind each, and how many segments are not worth a fill request."""

    gaps: tuple[Interval, ...]
    kept: tuple[Interval, ...]
    dropped: int


@dataclass(frozen=True, slots=True)
class SegmentCosts:
    """`recompute_cost` is that of a block, `row_s` what a fill request takes beside its tokens."""

    recompute_cost: RecomputeCost
    row_s: float
    block_size: int

    def block_s(self, index: int) -> float:
        """Return the seconds that computing one block takes."""
        return self.recompute_cost.at(self.block_size * (index + 1))

    def island_s(self, island: Interval) -> float:
        """Return the seconds that reusing a cached segment saves: its blocks' costs grow evenly from first to last."""
        return island.blocks * (self.block_s(island.start) + self.block_s(island.end - 1)) / 2


def find_hits(cached: bytes | bytearray, limit: int) -> Hits:
    """Find the runs of blocks i with `cached[i]` 1; blocks from `limit` on must be computed anyway."""
    prefix = _find(cached, 0, 0, limit)
    return Hits(prefix, tuple(find_runs(cached, prefix, limit)))


def find_runs(marked: bytes | bytearray, start: int, limit: int) -> Iterator[Interval]:
    """Find the runs of blocks i with `marked[i]` 1, from `start` to `limit` - 1."""
    start = _find(marked, 1, start, limit)
    while start < limit:
        end = _find(marked, 0, start, limit)
        yield Interval(start, end)
        start = _find(marked, 1, end, limit)


def begin_outside(hits: Hits, inputs: Sequence[Interval]) -> Hits:
    """Shorten segments so that none begins within an image: its gap's fill request would end in the middle of it.

    Of each encoder input, in order, `inputs` has the blocks that cannot be a segment's first.
    """
    islands = []
    for island in hits.islands:
        start = island.start
        for inside in inputs:
            if inside.start <= start < inside.end:
                start = inside.end
        if start < island.end:
            islands.append(Interval(start, island.end))
    return hits._replace(islands=tuple(islands))


def plan_segments(hits: Hits, costs: SegmentCosts, max_gaps: int) -> SegmentPlan:
    """Make the plan that saves most. Each segment kept takes one more fill request, whichever others are kept."""
    savings = {island: costs.island_s(island) for island in hits.islands}
    worthwhile = [island for island in hits.islands if savings[island] > costs.row_s]
    best = sorted(worthwhile, key=savings.__getitem__, reverse=True)[:max_gaps]
    kept = tuple(sorted(best))
    starts = (hits.prefix, *(island.end for island in kept))
    gaps = tuple(Interval(start, island.start) for start, island in zip(starts, kept, strict=False))
    return SegmentPlan(gaps, kept, len(hits.islands) - len(kept))


def _find(cached: bytes | bytearray, value: int, start: int, limit: int) -> int:
    found = cached.find(value, start, limit)
    return limit if found < 0 else found
