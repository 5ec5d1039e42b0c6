"""Chooses which of a request's blocks are fetched from the CPU cache: the others are computed, in front or in gaps.

A request's full blocks, and what the caches have of them:

    | on the GPU | in the CPU cache |  gap  | in the CPU cache | tail |

What a block costs to compute grows with its position, what it costs to fetch does not. So of a run of blocks that the
host's memory has, the head may be cheaper to compute and the tail to fetch: the head is then part of the gap in front,
which a fill request computes. Each gap costs a fill request, so that a short head is fetched with its tail.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from math import inf
from typing import NamedTuple

from agentcache.engine.cpu_cache.link import Link
from agentcache.engine.segments.plan import Interval, SegmentCosts

# What a block is found as: on the GPU, maybe in the CPU cache too; there alone; in neither.
NEITHER, ON_GPU, ON_HOST = range(3)
_RUNS = re.compile(rb"\x00+|\x01+|\x02+")


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

    def find_dear(self, blocks: int) -> int:
        """Find the first of so many blocks that costs more to compute than to fetch; `blocks` if none does."""
        most_s = self.link.block_s / self.compute_price
        return bisect_right(range(blocks), most_s, key=self.compute.block_s)


# What the blocks so far cost, in seconds, and which of them are fetched.
_Plan = tuple[float, tuple[Interval, ...]]
_NO_PLAN: _Plan = (inf, ())


def plan_fetch(
    places: bytes, costs: FetchCosts, max_gaps: int, inputs: Sequence[Interval] = ()
) -> tuple[Interval, ...]:
    """Find the blocks whose fetch makes the request cheapest; none if they save no more than the link's latency.

    `places` tells of each block that can be reused where it is. At most `max_gaps` gaps are filled; without any, a
    prefix is fetched whole or not at all. Of each encoder input `inputs` has the blocks before which no gap can end.
    O(runs of blocks found alike · gaps).
    """
    seconds, fetched = _find_cheapest(places, costs, max_gaps, inputs)
    if not fetched:
        return ()
    without = places.replace(bytes([ON_HOST]), bytes([NEITHER]))
    without_s, _ = _find_cheapest(without, costs, max_gaps, inputs)
    return fetched if seconds + costs.link.latency_s < without_s else ()


def _find_cheapest(places: bytes, costs: FetchCosts, max_gaps: int, inputs: Sequence[Interval]) -> _Plan:
    """Go from run to run with the cheapest plan for each number of gaps: while it reuses, and while it computes."""
    reusing: list[_Plan] = [(0.0, ())]
    computing = [_NO_PLAN]
    dear = costs.find_dear(len(places))
    for run, place in _find_runs(places):
        either = list(map(min, reusing, computing))
        computing = _add(either, costs.compute_s(run))
        if place == NEITHER:
            reusing = [_NO_PLAN] * len(either)
            continue
        reusing = _add(reusing, *_reuse(run, place, costs))
        best = min(max(dear, run.start), run.end) if place == ON_HOST else run.start
        tail = _find_tail(run, place, costs, _find_ends(best, inputs))
        if not max_gaps or tail is _NO_PLAN:
            continue
        behind_gap = _add(either[:max_gaps], *tail)
        if len(reusing) <= max_gaps:
            reusing.append(_NO_PLAN)
            computing.append(_NO_PLAN)
        reusing = [reusing[0], *map(min, reusing[1:], behind_gap)]
    return min(*reusing, *computing)


def _add(plans: Sequence[_Plan], seconds: float, fetched: tuple[Interval, ...] = ()) -> list[_Plan]:
    return [(before_s + seconds, before + fetched) for before_s, before in plans]


def _reuse(blocks: Interval, place: int, costs: FetchCosts) -> _Plan:
    return (blocks.blocks * costs.link.block_s, (blocks,)) if place == ON_HOST else (0.0, ())


def _find_tail(run: Interval, place: int, costs: FetchCosts, ends: Collection[int]) -> _Plan:
    """Find the cheapest way to end a gap within this run and to reuse what is behind it, if any of `ends` is there."""
    tails = []
    for end in ends:
        if run.start <= end < run.end:
            seconds, fetched = _reuse(Interval(end, run.end), place, costs)
            tails.append((seconds + costs.compute_s(Interval(run.start, end)) + costs.gap_s, fetched))
    return min(tails, default=_NO_PLAN)


def _find_ends(best: int, inputs: Sequence[Interval]) -> set[int]:
    """Find where a gap can end that would best end at `best`: there, or in front of the inputs there and behind."""
    front = behind = best
    for inside in inputs:
        behind = inside.end if inside.start <= behind < inside.end else behind
    for inside in reversed(inputs):
        front = inside.start - 1 if inside.start <= front < inside.end else front
    return {front, behind}


def _find_runs(places: bytes) -> Iterator[tuple[Interval, int]]:
    for match in _RUNS.finditer(places):
        yield Interval(*match.span()), places[match.start()]
