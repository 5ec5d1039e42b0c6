"""Which of a request's blocks are fetched from the host's memory: the others are computed, in front or in gaps.

A request's full blocks, and what the caches have of them:

    | on the GPU | in the host's memory |  gap  | in the host's memory | tail |

What a block costs to compute grows with its position, what it costs to fetch does not. So of a run of blocks that the
host's memory has, the head may be cheaper to compute and the tail to fetch: the head is then part of the gap in front,
which a fill request computes. Each gap costs a fill request, so that a short head is fetched with its tail.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from agentcache.engine.segments.plan import Interval, SegmentCosts

# What a block is found as: on the GPU, maybe in the host's memory too; there alone; in neither.
NEITHER, ON_GPU, ON_HOST = range(3)
_RUNS = re.compile(rb"\x00+|\x01+|\x02+")


@dataclass(frozen=True, slots=True)
class Link:
    """Between the host's memory and the GPU: seconds until a copy begins, and seconds of each block."""

    latency_s: float
    block_s: float


class FetchCosts(NamedTuple):
    """A second of computing counts for `compute_price` of the link's: all that runs stands still for it."""

    compute: SegmentCosts
    link: Link
    compute_price: float

    @property
    def gap_s(self) -> float:
        """Return what a fill request costs beside its blocks."""
        return self.compute_price * self.compute.row_s

    def compute_s(self, blocks: Interval) -> float:
        """Return what computing these blocks costs."""
        return self.compute_price * self.compute.island_s(blocks) if blocks.blocks else 0.0

    def find_dear(self, blocks: Interval) -> int:
        """Find the first of these blocks that costs more to compute than to fetch; their end if none does."""
        most_s = self.link.block_s / self.compute_price
        return blocks.start + bisect_right(range(*blocks), most_s, key=self.compute.block_s)


class _Plan(NamedTuple):
    """What the blocks so far cost, and which of them are fetched."""

    seconds: float
    fetched: tuple[Interval, ...]

    def add(self, seconds: float, fetched: tuple[Interval, ...] = ()) -> _Plan:
        return _Plan(self.seconds + seconds, self.fetched + fetched)


_NO_PLAN = _Plan(inf, ())


def plan_fetch(
    places: bytes, costs: FetchCosts, max_gaps: int, inputs: Sequence[Interval] = ()
) -> tuple[Interval, ...]:
    """Find the blocks whose fetch makes the request cheapest; none if they save no more than the link's latency.

    `places` tells of each block that can be reused where it is. At most `max_gaps` gaps are filled; without any, a
    prefix is fetched whole or not at all. Of each encoder input `inputs` has the blocks before which no gap can end.
    O(runs of blocks found alike · gaps).
    """
    plan = _find_cheapest(places, costs, max_gaps, inputs)
    if not plan.fetched:
        return ()
    without = _find_cheapest(places.replace(bytes([ON_HOST]), bytes([NEITHER])), costs, max_gaps, inputs)
    return plan.fetched if plan.seconds + costs.link.latency_s < without.seconds else ()


def _find_cheapest(places: bytes, costs: FetchCosts, max_gaps: int, inputs: Sequence[Interval]) -> _Plan:
    """Go from run to run with the cheapest plan for each number of gaps: while it reuses, and while it computes."""
    reusing, computing = [_Plan(0.0, ())], [_NO_PLAN]
    for run, place in _find_runs(places):
        either = list(map(min, reusing, computing))
        compute_s = costs.compute_s(run)
        computing = [plan.add(compute_s) for plan in either]
        if place == NEITHER:
            reusing = [_NO_PLAN] * len(either)
            continue
        reusing = [plan.add(*_reuse(run, place, costs)) for plan in reusing]
        start = _move_outside(costs.find_dear(run) if place == ON_HOST else run.start, inputs)
        if start >= run.end or not max_gaps:
            continue
        seconds, fetched = _reuse(Interval(start, run.end), place, costs)
        seconds += costs.compute_s(Interval(run.start, start)) + costs.gap_s
        behind_gap = [plan.add(seconds, fetched) for plan in either[:max_gaps]]
        if len(reusing) <= max_gaps:
            reusing.append(_NO_PLAN)
            computing.append(_NO_PLAN)
        reusing = [reusing[0], *map(min, reusing[1:], behind_gap)]
    return min(*reusing, *computing)


def _reuse(blocks: Interval, place: int, costs: FetchCosts) -> tuple[float, tuple[Interval, ...]]:
    """Return what it costs that these blocks are reused, and which of them are fetched."""
    return (blocks.blocks * costs.link.block_s, (blocks,)) if place == ON_HOST else (0.0, ())


def _find_runs(places: bytes) -> Iterator[tuple[Interval, int]]:
    for match in _RUNS.finditer(places):
        yield Interval(*match.span()), places[match.start()]


def _move_outside(start: int, inputs: Sequence[Interval]) -> int:
    for inside in inputs:
        if inside.start <= start < inside.end:
            start = inside.end
    return start
