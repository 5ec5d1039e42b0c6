"""What csrc/evictors/return_time.hpp does, from the formulas.

No bins found by bits, no heap, each value computed when asked for.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from agentcache._evictor import SHARED_CLASS, FreeContext
from agentcache.policy.registry import LEAST_WAIT_S

# Four to each doubling, from 1/64 s on.
EDGES_S = [0.0, *(2.0**exponent * (1 + quarter / 4) for exponent in range(-6, 20) for quarter in range(4)), 2.0**20]
BINS = len(EDGES_S) - 1
WIDTHS_S = [EDGES_S[i + 1] - EDGES_S[i] for i in range(BINS)]
PRIOR_AWAY = [30.0 / (30.0 + edge_s) for edge_s in EDGES_S]

# What is left of the value of blocks that are of use together alone, once one is lost.
BROKEN_VALUE = 1e-9

Curve = list[float]


def bin_of(age_s: float) -> int:
    return min(max(bisect_right(EDGES_S, age_s) - 1, 0), BINS - 1)


def expected_inverse_wait(away: Sequence[float], least_wait_s: float) -> Curve:
    """At each edge, given no return before it; `away` is the share that is still away there."""
    staying = [after / before if before else 1.0 for before, after in itertools.pairwise(away)]
    values = []
    for start in range(BINS):
        value, left = 0.0, 1.0
        for i in range(start, BINS):
            if left <= 1e-9:
                break
            value += left * (1 - staying[i]) / (least_wait_s + (EDGES_S[i] - EDGES_S[start] + WIDTHS_S[i] / 2))
            left *= staying[i]
        values.append(value)
    return [*values, values[-1]]


@dataclass
class Group:
    """Cost in seconds, number of addition, and id of each block that is left, the next victim first."""

    freed_s: float
    factor: float
    finish_class: int
    job: int
    whole: bool
    blocks: list[tuple[float, int, int]]


class ReturnTimeReference:
    """The methods of `_evictor.ReturnTimeEvictor`, for blocks with KV alone. O(free blocks) and more for each."""

    def __init__(self, *, slope_s: float, base_s: float, floor_s: float) -> None:
        self._cost = (slope_s, base_s, floor_s)
        self._groups: list[Group] = []
        self._added = 0
        # Of each block: the jobs other than its group's that left it, the latest first.
        self._others: dict[int, list[int]] = {}
        self._newest: dict[int, Group] = {}
        self._curves: defaultdict[int, Curve] = defaultdict(lambda: expected_inverse_wait(PRIOR_AWAY, LEAST_WAIT_S))

    def expect(self, finish_class: int, away: Sequence[float]) -> None:
        self._curves[finish_class] = expected_inverse_wait(away, LEAST_WAIT_S)

    def add(
        self,
        block_ids: Sequence[int],
        positions: Sequence[int],
        now_s: float,
        context: FreeContext,
    ) -> None:
        factor, finish_class, job = context.factor, context.finish_class, context.job
        slope_s, base_s, floor_s = self._cost
        costs = [max(floor_s, slope_s * position + base_s) for position in positions]
        blocks = sorted(zip(costs, range(self._added, self._added + len(costs)), block_ids, strict=True))
        self._added += len(costs)
        for block_id, position in zip(block_ids, positions, strict=True):
            if position == 0:
                self.forget(block_id)
        group = Group(now_s, factor, finish_class, job, context.whole, [])
        newest = {job: each for job, each in self._newest.items() if each.blocks}
        shared = replace(group, factor=1.0, finish_class=SHARED_CLASS, job=0, blocks=[])
        for block in blocks:
            self._find_group(block[2], group, shared, newest, now_s).blocks.append(block)
        for each in newest.values():
            each.blocks.sort()
        for each in (shared, group):
            if each.blocks:
                self._groups.append(each)
        if job and group.blocks:
            self._newest[job] = group

    def evict(self, count: int, now_s: float) -> list[int]:
        victims = list(self.order(now_s))[:count]
        for block_id in victims:
            group = self._take_out(block_id)
            if group.whole:
                group.factor, group.whole = group.factor * BROKEN_VALUE, False
            self.forget(block_id)
        return victims

    def reprice(self, block_ids: Sequence[int], cost_s: float) -> None:
        """What stays together shares the same chance of return."""
        for group in list(self._groups):
            moved = sorted((cost_s, added, block_id) for _, added, block_id in group.blocks if block_id in block_ids)
            if not moved:
                continue
            group.blocks = [block for block in group.blocks if block[2] not in block_ids]
            target = replace(group, blocks=moved)
            self._groups.append(target)
            if not group.blocks:
                self._newest = {job: target if each is group else each for job, each in self._newest.items()}
        self._groups = [each for each in self._groups if each.blocks]

    def forget(self, block_id: int) -> None:
        self._others.pop(block_id, None)

    def remove(self, block_id: int) -> None:
        group = self._take_out(block_id)
        if group.job:
            others = self._others.get(block_id, [])
            self._others[block_id] = [group.job, *(each for each in others if each != group.job)]

    def order(self, now_s: float) -> Iterator[int]:
        left = [[self._value(group, now_s), list(group.blocks), group.whole] for group in self._groups]
        while left:
            first = min(left, key=lambda group: (group[0] * group[1][0][0], group[1][0][1]))
            yield first[1].pop(0)[2]
            if first[2]:
                first[0], first[2] = first[0] * BROKEN_VALUE, False
            left = [group for group in left if group[1]]

    def _find_group(self, block_id: int, own: Group, shared: Group, newest: dict[int, Group], now_s: float) -> Group:
        """Of those that wait for the block the group that is worth most; `shared` if two jobs more wait for it."""
        jobs = self._others.pop(block_id, [])[:2]
        waiting = [newest[job] for job in jobs if job in newest and job != own.job]
        if len(waiting) == 2:
            self._others[block_id] = jobs
            return shared
        home = own
        for group in waiting:
            if self._value(group, now_s) > self._value(home, now_s):
                home = group
        others = [own.job if group is home else group.job for group in waiting]
        self._others[block_id] = [job for job in others if job]
        return home

    def _value(self, group: Group, now_s: float) -> float:
        age_s, curve = now_s - group.freed_s, self._curves[group.finish_class]
        i = bin_of(age_s)
        slope = (curve[i + 1] - curve[i]) / WIDTHS_S[i]
        return (curve[i] + slope * (min(max(age_s, 0.0), EDGES_S[-1]) - EDGES_S[i])) * group.factor

    def _take_out(self, block_id: int) -> Group:
        for group in self._groups:
            kept = [block for block in group.blocks if block[2] != block_id]
            if len(kept) < len(group.blocks):
                group.blocks = kept
                self._groups = [each for each in self._groups if each.blocks]
                return group
        raise KeyError(block_id)
