"""Fill requests: requests of our own that compute the gaps of a waiting request, so that it hits what lies behind them.

A fill request is an ordinary request over the tokens up to the gap's end: it hits the blocks before the gap, computes
the gap, and registers its blocks. From then on its parent's prefix goes on to the end of the cached segment behind.
All may share one step, because every layer writes the keys and values of the whole batch before its attention reads
them. Nothing depends on a fill request: if it is cut short, its parent computes the rest itself.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from agentcache.engine.cached_blocks import CachedBlockMap, HitFinder, Prefix, PrefixHit
from agentcache.engine.parts import Part
from agentcache.engine.segments.fill_request import (
    FillRequest,
    Holds,
    Parent,
    awaits_grammar,
    find_obstacle,
    is_startable,
    make_fill_request,
)
from agentcache.engine.views import SegmentCounts
from agentcache.engine.vllm.base import cdiv
from agentcache.engine.vllm.types import KVCacheBlock, KVCacheManager, Request, RequestStatus
from agentcache.engine.waits import WaitReason
from agentcache.policy.reuse_plan import Hits, Interval, Place, SegmentCosts, plan_segments

_NO_ROOM = "no room"


class GapFiller(Part):
    """Plan fill requests for the request that is next in the queue, and keep account of them."""

    def __init__(
        self,
        manager: KVCacheManager,
        finder: HitFinder,
        costs: SegmentCosts,
        max_gaps: int,
        *,
        find_wait: Callable[[Request], WaitReason | None],
        awaits_blocks: Callable[[Request, CachedBlockMap], bool],
    ) -> None:
        """`find_wait` finds why a request must wait for others' sake.

        `awaits_blocks` tells whether it must for blocks of the CPU cache, by what the GPU has.
        """
        self.stats = SegmentCounts()
        # Fill requests under way, by their request's id.
        self.rows: dict[str, FillRequest] = {}
        self.holds = Holds(manager.block_pool, finder)
        self._parents = self.holds.parents
        self._planned: FillRequest | None = None
        # The blocks, by index, that were computed for each request that this step has admitted.
        self.filled: dict[str, set[int]] = {}
        # The request whose look-up comes next, and what it will find.
        self._prefix: tuple[Request, Prefix] | None = None
        # Waiting requests that were looked up, those that are held back in every step.
        self._seen: set[str] = set()
        self._find_wait = find_wait
        self._awaits_blocks = awaits_blocks
        self._manager = manager
        self._pool = manager.block_pool
        self.finder = finder
        self.costs = costs
        # Measurements change it.
        self.max_gaps = max_gaps
        # What `next_row` gave last, if it must, or has no grammar: asked a moment later, the answer might be another.
        self.held: tuple[Request, WaitReason] | None = None
        self._numbers = itertools.count()

    def next_row(self, request: Request) -> Request:
        """Return what must be scheduled next so that `request` gets on: a fill request, or the request itself."""
        self._planned = self._prefix = self.held = None
        if awaits_grammar(request):
            self.held = request, "grammar"
        if self.held or request.num_computed_tokens or not is_startable(request) or find_obstacle(request):
            return request
        block_map, hits = self.look(request)
        parent = self._parents.get(request.request_id)
        prefix = Prefix(block_map, hits.prefix, {} if parent is None else parent.held)
        self._prefix = request, prefix
        if self.awaits_fill(request) or self._awaits_blocks(request, block_map) or not hits.islands:
            return request
        if not self.has_begun(request) and (reason := self._find_wait(request)) is not None:
            self.held = request, reason
            return request
        parent = parent or Parent(request)
        plan = plan_segments(hits, self.costs, self.gaps_left(request))
        parent.dropped = max(parent.dropped, plan.dropped)
        self._parents[request.request_id] = parent
        if not plan.gaps:
            return request
        if not self.has_room(request, block_map, plan.kept):
            parent.lacked_room = True
            return request
        self.holds.hold_cached(request, block_map, list(self.finder.find_places(plan.kept)))
        fill = make_fill_request(request, plan.gaps[0], self.finder.block_size, next(self._numbers))
        self._planned = FillRequest(fill, parent, plan.gaps[0])
        self._prefix = fill, prefix._replace(held=parent.held)
        return fill

    def is_planned(self, request: Request) -> bool:
        """Tell whether this is the fill request that `next_row` gave last."""
        return self._planned is not None and self._planned.request is request

    def find_prefix(self, request: Request) -> PrefixHit | None:
        """Find the cached blocks that the request begins with, if it is the one that `next_row` gave last."""
        if self._prefix is None or self._prefix[0] is not request:
            return None
        return self.finder.find_prefix(self._prefix[1], self.finder.limit_of(request))

    def has_begun(self, request: Request) -> bool:
        """Tell whether a gap of the waiting request was filled or is: from then on it keeps blocks from others."""
        return (parent := self._parents.get(request.request_id)) is not None and bool(parent.rows)

    def gaps_left(self, request: Request) -> int:
        """Return how many gaps of the request may yet be filled."""
        parent = self._parents.get(request.request_id)
        return max(0, self.max_gaps - (0 if parent is None else len(parent.rows)))

    def awaits_fill(self, request: Request) -> bool:
        """Tell whether a fill request still has to compute some of its gap, so that `request` must wait a step."""
        parent = self._parents.get(request.request_id)
        if parent is None or not parent.rows or parent.rows[-1].request.request_id not in self.rows:
            return False
        full = self.finder.rule.find_full(self.finder.cache.watchers[request.request_id].cached)
        return not full[parent.rows[-1].gap.end - 1]

    def admit(self, request: Request, hit_tokens: int) -> tuple[int, int] | None:
        """Note that the request has its blocks and runs in this step.

        Returns:
            How many tokens it hit only because we had them computed, and how many because we had them fetched. None for
            a fill request, which is under way from now on.
        """
        row = self._planned
        self._planned = self._prefix = None
        if row is not None and row.request is request:
            row.parent.rows.append(row)
            row.parent.filled.update(range(*row.gap))
            self.rows[request.request_id] = row
            return None
        self._unwatch(request)
        if (obstacle := find_obstacle(request)) is not None:
            self.stats.fallbacks[obstacle] += 1
        if (parent := self._parents.pop(request.request_id, None)) is None:
            return 0, 0
        self.holds.release(parent, parent.held)
        if parent.filled:
            self.filled[request.request_id] = parent.filled
        hit_blocks = hit_tokens // self.finder.block_size
        filled, fetched = (
            sum(index < hit_blocks for index in brought) * self.finder.block_size
            for brought in (parent.filled, parent.fetched - parent.filled)
        )
        self._count(parent, filled)
        return filled, fetched

    def hold_new_blocks(self) -> None:
        """Hold what fill requests compute until their parents are admitted. Call it after each step is scheduled."""
        for row in self.rows.values():
            if row.parent.request.request_id not in self._parents:
                continue
            groups = self._manager.get_blocks(row.request.request_id).blocks
            # Not one that is half computed: were the row preempted, its parent would read it in place of a whole one.
            whole = row.request.num_computed_tokens // self.finder.block_size
            new = {
                (index, group): groups[group][index]
                for group in self.finder.rule.full
                for index in range(row.gap.start, min(row.gap.end, whole))
                if (index, group) not in row.parent.held
            }
            self._pool.touch(list(new.values()))
            row.parent.held.update(new)

    def take_ended(self) -> list[FillRequest]:
        """Forget and return the fill requests that have finished, or lost their blocks, since the last call."""
        ended = [row for row in self.rows.values() if row.request.status > RequestStatus.RUNNING]
        for row in ended:
            del self.rows[row.request.request_id]
        return ended

    def forget(self, requests: Iterable[Request]) -> list[str]:
        """Forget requests that are over. Return the ids of fill requests that are no longer needed."""
        needless = []
        self._planned = self._prefix = None
        for request in requests:
            self._unwatch(request)
            if (parent := self._parents.pop(request.request_id, None)) is not None:
                self.holds.release(parent, parent.held)
                needless += [name for row in parent.rows if (name := row.request.request_id) in self.rows]
        return needless

    def find_finished_parents(self) -> list[Request]:
        """List the requests that are over of those that gaps were filled for."""
        return [parent.request for parent in self._parents.values() if parent.request.is_finished()]

    def make_room(self, request: Request, *, is_alone: bool) -> bool:
        """Release what is held for others than a request that finds no blocks. Return whether any was.

        What runs makes room some day. Where nothing does, what the request itself needs least is released, too.
        """
        return self.release_holds(keep_for=request) or (is_alone and self.release_needless(request))

    def count_held(self) -> Counter[int]:
        """Count how often each block is held, by its id."""
        return self.holds.count_held()

    def release_holds(self, keep_for: Request | None = None) -> bool:
        """Release the holds of all but this request (a fill request's parent) and those ahead of it.

        Return False when nothing was held.
        """
        planned = self._planned if self._planned is not None and self._planned.request is keep_for else None
        row = planned or (self.rows.get(keep_for.request_id) if keep_for else None)
        return self.holds.release_all_but(row.parent.request if row else keep_for)

    def release_needless(self, request: Request) -> bool:
        """Release what is held behind gaps that are not filled: `request`, which is next, computes it anew.

        Return False when nothing of that was held, or another one comes next.
        """
        row = self._planned if self.is_planned(request) else None
        parent = row.parent if row else self._parents.get(request.request_id)
        if parent is None or self._prefix is None or self._prefix[0] is not request:
            return False
        computed = range(self._prefix[1].blocks, cdiv(request.num_tokens, self.finder.block_size))
        needless = [place for place in parent.held if place[0] in computed]
        self.holds.release(parent, needless)
        return bool(needless)

    def begin_anew(self) -> None:
        """Begin anew: the prefix cache was reset, and vLLM made a new map."""
        self.finder.watch()
        self._parents.clear()

    def count_running(self) -> int:
        """Count the fill requests that run."""
        return sum(row.request.status == RequestStatus.RUNNING for row in self.rows.values())

    def look(self, request: Request) -> tuple[CachedBlockMap, Hits]:
        """Look up what is cached of the request: O(blocks) the first time, then kept up to date while it waits."""
        block_map = self.finder.cache.watchers.get(request.request_id) or self.finder.map(request)
        hits = self.finder.find_hits(request, block_map, self.finder.limit_of(request))
        if hits.islands or request.request_id in self._seen:
            self.finder.cache.watchers[request.request_id] = block_map
        self._seen.add(request.request_id)
        return block_map, hits

    def _unwatch(self, request: Request) -> None:
        self.finder.cache.watchers.pop(request.request_id, None)
        self._seen.discard(request.request_id)

    def _count(self, parent: Parent, filled_tokens: int) -> None:
        if parent.rows:
            self.stats.requests[len(parent.rows) + 1] += 1
        elif parent.lacked_room:
            self.stats.fallbacks[_NO_ROOM] += 1
        self.stats.islands_dropped += parent.dropped
        self.stats.fill_tokens += filled_tokens

    def has_room(self, request: Request, block_map: CachedBlockMap, kept: Sequence[Interval] = ()) -> bool:
        """Tell whether the whole request fits beside what runs: else filling would only keep blocks from others.

        The segments `kept` are to be held. Of groups that keep a part, a request computes with blocks of its own.
        """
        full = self.finder.rule.full
        parent = self._parents.get(request.request_id)
        held: Mapping[Place, KVCacheBlock] = {} if parent is None else parent.held
        wanted = sum(self._count_wanted(request, group) for group in range(self.finder.rule.groups))
        wanted += sum(place not in held for place in self.finder.find_parts(kept))
        free = self._pool.get_num_free_blocks() - self._manager.watermark_blocks
        if wanted - sum(group in full for _, group in held) <= free:
            return True
        if wanted - sum(block_map.cached[group].count(1) for group in full) > free:
            return False
        keys = [itertools.compress(block_map.keys[group], block_map.cached[group]) for group in full]
        hit_blocks = self.finder.cache.find_blocks(list(itertools.chain.from_iterable(keys)))
        return wanted - sum(block.ref_cnt > 0 for block in hit_blocks) <= free

    def _count_wanted(self, request: Request, group: int) -> int:
        """Count the blocks of a group that the request and its fill requests have at a time, at most."""
        most = self._manager.coordinator.single_type_managers[group].max_admission_blocks_per_request
        wanted = cdiv(request.num_tokens, self.finder.block_size)
        return wanted if most is None else min(wanted, most)
