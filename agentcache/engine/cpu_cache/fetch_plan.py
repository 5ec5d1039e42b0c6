"""Chooses which of a request's blocks are fetched from the CPU cache: the others are computed, in front or in gaps.

Gaps are planned as if what the CPU cache has were on the GPU (`plan_segments`), so the fetched blocks are those that a
plan made when they have come reuses. What a block costs to compute grows with its position, what it costs to fetch does
not: blocks that are cheaper to compute are left where they are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from agentcache.engine.cpu_cache.link import Link
from agentcache.engine.segments.plan import Interval, SegmentCosts, begin_outside, find_hits, find_runs, plan_segments


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
