"""Plans how a prompt's cached blocks are reused: what is fetched from the CPU cache, and which gaps are filled.

A request's full blocks, by index, and what the cache holds of them:

    | cached prefix |  gap  | segment |   gap   | segment | tail
    0               p       a         b         c         d     n

A fill request computes a gap; the request itself computes from the end of the last cached segment that is kept. A
segment that is not kept becomes part of the gap around it. Blocks are counted, not tokens; intervals are half open. In
the code `islands` are the cached segments behind the prefix.

Where layers do not all keep all tokens, a request can go on with cached blocks from places alone at which each group of
layers has what it needs:

    full attention    | every block before it
    sliding window    |                   the last window |
    chunked attention |              the chunk's beginning |

Of a run of blocks that full attention has cached, what lies before the last such place in it can be reused, and nothing
behind it. A gap is computed from the end of what can be reused before it, whatever full attention has between.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

from agentcache.policy.link_profile import Link
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


def _find(cached: bytes | bytearray, value: int, start: int, limit: int) -> int:
    found = cached.find(value, start, limit)
    return limit if found < 0 else found


@dataclass(frozen=True, slots=True)
class Window:
    """A group whose layers see that many blocks before a token's own."""

    blocks: int

    def start(self, end: int) -> int:
        """Return the first block that a token behind the first `end` blocks sees."""
        return max(0, end - self.blocks)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A group whose layers see a token's own chunk."""

    tokens: int
    block_size: int

    def start(self, end: int) -> int:
        """Return the first block that a token behind the first `end` blocks sees."""
        return end * self.block_size // self.tokens * self.tokens // self.block_size


@dataclass(frozen=True, slots=True)
class LayerRule:
    """The groups whose layers keep all tokens, and what each of the others keeps, by their numbers."""

    full: tuple[int, ...] = (0,)
    parts: tuple[tuple[int, Window | Chunk], ...] = ()

    @property
    def groups(self) -> int:
        """Return the number of groups."""
        return len(self.full) + len(self.parts)

    def find_full(self, cached: Sequence[bytearray]) -> bytearray:
        """Find the blocks that all full attention has cached. `cached[g][i]` is 1 where group g has block i."""
        first, *others = (cached[group] for group in self.full)
        if not others:
            return first
        both = int.from_bytes(first)
        for other in others:
            both &= int.from_bytes(other)
        return bytearray(both.to_bytes(len(first)))

    def find_usable(self, cached: Sequence[bytearray], limit: int) -> bytearray:
        """Find the blocks that can be reused by somebody who computes all others before `limit`. `cached` as above."""
        full = self.find_full(cached)
        if not self.parts:
            return full
        usable = bytearray(len(full))
        hits = find_hits(full, limit)
        for start, end in (Interval(0, hits.prefix), *hits.islands):
            last = self._last_place(cached, start, end)
            usable[start:last] = b"\1" * (last - start)
        return usable

    def needed_at(self, end: int) -> Iterator[tuple[int, range]]:
        """Yield what groups that keep a part need to go on behind the first `end` blocks: group and blocks."""
        return ((group, range(part.start(end), end)) for group, part in self.parts)

    def _last_place(self, cached: Sequence[bytearray], start: int, end: int) -> int:
        """Find the last place in a run from where one can go on; its start if there is none."""
        while end > start:
            # Each group moves the place back, or leaves it where it is: then it suits all.
            place = reduce(lambda place, part: _last_end(cached[part[0]], part[1], place), self.parts, end)
            if place == end:
                return end
            end = place
        return start


def _last_end(cached: bytearray, part: Window | Chunk, end: int) -> int:
    """Find the last place up to `end` where a group has its part: a block that one lacks all up to `end` lack."""
    while (missing := cached.find(0, part.start(end), end)) >= 0:
        end = missing
    return end


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


def plan_segments(hits: Hits, costs: SegmentCosts, max_gaps: int) -> SegmentPlan:
    """Make the plan that saves most. Each segment kept takes one more fill request, whichever others are kept."""
    savings = {island: costs.island_s(island) for island in hits.islands}
    worthwhile = [island for island in hits.islands if savings[island] > costs.row_s]
    best = sorted(worthwhile, key=savings.__getitem__, reverse=True)[:max_gaps]
    kept = tuple(sorted(best))
    starts = (hits.prefix, *(island.end for island in kept))
    gaps = tuple(Interval(start, island.start) for start, island in zip(starts, kept, strict=False))
    return SegmentPlan(gaps, kept, len(hits.islands) - len(kept))


class FetchCosts(NamedTuple):
    """A second of computing counts for `compute_price` of the link's: all that runs stands still for it."""

    compute: SegmentCosts
    link: Link
    compute_price: float

    def find_dear(self, blocks: int) -> int:
        """Find the first of so many blocks that costs more to compute than to fetch; `blocks` if none does."""
        most_s = self.link.block_s / self.compute_price
        return bisect_right(range(blocks), most_s, key=self.compute.block_s)

    def saved_s(self, runs: Sequence[Interval]) -> float:
        """Return the seconds of the link that fetching these blocks saves."""
        computed_s = self.compute_price * sum(map(self.compute.island_s, runs))
        return computed_s - sum(run.blocks for run in runs) * self.link.block_s - self.link.latency_s


def plan_fetch(
    on_gpu: bytes, on_host: bytes, costs: FetchCosts, max_gaps: int, inputs: Sequence[Interval] = ()
) -> list[Interval]:
    """Choose the blocks to fetch; none if they save no more than the link's latency.

    Gaps are planned as if what the CPU cache has were on the GPU, so the fetched blocks are those that a plan made when
    they have come reuses. What a block costs to compute grows with its position, what it costs to fetch does not:
    blocks that are cheaper to compute are left where they are, and computed in front or in gaps.

    `on_gpu[i]` is 1 where the GPU has block i, `on_host[i]` where the CPU cache alone has it. At most `max_gaps` gaps
    are filled. Of each encoder input `inputs` has the blocks before which no gap can end. O(blocks).
    """
    dear = costs.find_dear(len(on_host))
    fetchable = bytes(dear) + on_host[dear:]
    # As numbers, all at once: a queued request is looked at in every step.
    readable = (int.from_bytes(on_gpu) | int.from_bytes(fetchable)).to_bytes(len(on_gpu))
    hits = begin_outside(find_hits(readable, len(readable)), inputs)
    kept = plan_segments(hits, costs.compute, max_gaps).kept
    fetched = [run for reused in (Interval(0, hits.prefix), *kept) for run in find_runs(fetchable, *reused)]
    return fetched if costs.saved_s(fetched) > 0 else []
