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
from dataclasses import dataclass, field
from typing import NamedTuple

from vllm import SamplingParams
from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId, KVCacheBlock
from vllm.v1.request import Request, RequestStatus

from agentcache.engine.constants import FILL_MARK
from agentcache.engine.segments.cached_blocks import CachedBlockMap, WatchedBlockMap, watch_cache
from agentcache.engine.segments.plan import Hits, Interval, SegmentCosts, find_hits, plan_segments

_STARTABLE = (RequestStatus.WAITING, RequestStatus.PREEMPTED)
_NO_ROOM = "no room"


@dataclass(slots=True)
class SegmentStats:
    """Since the start. `segments` counts requests by their number of cached segments; `fallbacks` by reason."""

    segments: Counter[int] = field(default_factory=Counter)
    fill_tokens: int = 0
    islands_dropped: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True, eq=False)
class FillRequest:
    """`request` computes the blocks `gap` of `parent`."""

    request: Request
    parent: Parent
    gap: Interval


@dataclass(slots=True, eq=False)
class Parent:
    """A waiting request with gaps. `held` are its blocks that nobody may evict until it is admitted, by their index.

    Of its blocks, fill requests computed `filled`, and `fetched` came from the host's memory.
    """

    request: Request
    rows: list[FillRequest] = field(default_factory=list)
    held: dict[int, KVCacheBlock] = field(default_factory=dict)
    filled: set[int] = field(default_factory=set)
    fetched: set[int] = field(default_factory=set)
    dropped: int = 0
    lacked_room: bool = False


class Brought(NamedTuple):
    """Tokens that an admitted request hit, but only because we had them computed or fetched for it."""

    filled: int
    fetched: int


class GapFiller:
    """Plan fill requests for the request that is next in the queue, and keep account of them."""

    def __init__(self, manager: KVCacheManager, block_size: int, costs: SegmentCosts, max_gaps: int) -> None:
        self.stats = SegmentStats()
        # Fill requests under way by their request's id, and parents by theirs.
        self.rows: dict[str, FillRequest] = {}
        self._parents: dict[str, Parent] = {}
        self._planned: FillRequest | None = None
        # The blocks, by index, that were computed for each request that this step has admitted.
        self.filled: dict[str, set[int]] = {}
        # Whose look-up comes next, and the keys of the blocks that it hits.
        self._prefix: tuple[Request, list[BlockHashWithGroupId]] | None = None
        self._looked_at: str | None = None
        self._manager = manager
        self._pool = manager.block_pool
        self.cache: WatchedBlockMap = watch_cache(self._pool)
        self._block_size = block_size
        self.costs = costs
        # Measurements change it.
        self.max_gaps = max_gaps
        # Tells whether a request must wait for blocks of a second tier, with what is cached of it.
        self.awaits_tier: Callable[[Request, CachedBlockMap], bool] = lambda *_: False
        self._numbers = itertools.count()

    def next_row(self, request: Request) -> Request:
        """Return what must be scheduled next so that `request` gets on: a fill request, or the request itself."""
        self._planned = self._prefix = None
        if request.num_computed_tokens or not _is_startable(request) or find_obstacle(request) is not None:
            return request
        block_map, hits = self.look(request)
        prefix = block_map.keys[: hits.prefix]
        self._prefix = request, prefix
        if self.awaits_fill(request) or self.awaits_tier(request, block_map) or not hits.islands:
            return request
        parent = self._parents.get(request.request_id) or Parent(request)
        plan = plan_segments(hits, self.costs, max(0, self.max_gaps - len(parent.rows)))
        parent.dropped = max(parent.dropped, plan.dropped)
        self._parents[request.request_id] = parent
        if not plan.gaps:
            return request
        if not self.has_room(request, block_map):
            parent.lacked_room = True
            return request
        self.hold_cached(request, block_map, list(itertools.chain.from_iterable(range(*run) for run in plan.kept)))
        fill = _make_request(parent, plan.gaps[0], self._block_size, next(self._numbers))
        self._planned = FillRequest(fill, parent, plan.gaps[0])
        self._prefix = fill, prefix
        return fill

    def is_planned(self, request: Request) -> bool:
        """Tell whether this is the fill request that `next_row` gave last."""
        return self._planned is not None and self._planned.request is request

    def find_prefix(self, request: Request) -> list[KVCacheBlock] | None:
        """Find the cached blocks that the request begins with, if it is the one that `next_row` gave last."""
        if self._prefix is None or self._prefix[0] is not request:
            return None
        return self.cache.find_blocks(self._prefix[1])

    def awaits_fill(self, request: Request) -> bool:
        """Tell whether a fill request still has to compute some of its gap, so that `request` must wait a step."""
        parent = self._parents.get(request.request_id)
        if parent is None or not parent.rows or parent.rows[-1].request.request_id not in self.rows:
            return False
        block_map = self.cache.watchers[request.request_id]
        return not block_map.cached[parent.rows[-1].gap.end - 1]

    def admit(self, request: Request, hit_tokens: int) -> Brought | None:
        """Note that the request has its blocks and runs in this step.

        Returns None for a fill request, which is under way from now on.
        """
        row = self._planned
        self._planned = self._prefix = None
        if row is not None and row.request is request:
            row.parent.rows.append(row)
            row.parent.filled.update(range(*row.gap))
            self.rows[request.request_id] = row
            return None
        self.cache.watchers.pop(request.request_id, None)
        if (obstacle := find_obstacle(request)) is not None:
            self.stats.fallbacks[obstacle] += 1
        parent = self._parents.pop(request.request_id, None)
        if parent is None:
            return Brought(0, 0)
        self._release(parent)
        if parent.filled:
            self.filled[request.request_id] = parent.filled
        hit_blocks = hit_tokens // self._block_size
        filled, fetched = (
            sum(index < hit_blocks for index in brought) * self._block_size
            for brought in (parent.filled, parent.fetched - parent.filled)
        )
        self._count(parent, filled)
        return Brought(filled, fetched)

    def hold_new_blocks(self) -> None:
        """Hold what fill requests compute until their parents are admitted. Call it after each step is scheduled."""
        for row in self.rows.values():
            if row.parent.request.request_id not in self._parents:
                continue
            blocks = self._manager.get_blocks(row.request.request_id).blocks[0]
            new = [
                index for index in range(row.gap.start, min(row.gap.end, len(blocks))) if index not in row.parent.held
            ]
            self._pool.touch([blocks[index] for index in new])
            row.parent.held.update((index, blocks[index]) for index in new)

    def take_ended(self) -> list[FillRequest]:
        """Forget and return the fill requests that have finished, or lost their blocks, since the last call."""
        ended = [row for row in self.rows.values() if row.request.status > RequestStatus.RUNNING]
        for row in ended:
            del self.rows[row.request.request_id]
        return ended

    def forget(self, requests: Iterable[Request]) -> list[str]:
        """Forget requests that are over. Return the ids of fill requests that nobody needs any more."""
        needless = []
        self._planned = self._prefix = None
        for request in requests:
            self.cache.watchers.pop(request.request_id, None)
            parent = self._parents.pop(request.request_id, None)
            if parent is not None:
                self._release(parent)
                needless += [name for row in parent.rows if (name := row.request.request_id) in self.rows]
        return needless

    def find_finished_parents(self) -> list[Request]:
        """List the requests that are over of those that gaps were filled for."""
        return [parent.request for parent in self._parents.values() if parent.request.is_finished()]

    def release_holds(self, keep_for: Request | None = None) -> bool:
        """Release the holds of all but this request (a fill request's parent). Return False when nothing was held."""
        planned = self._planned if self._planned is not None and self._planned.request is keep_for else None
        row = planned or (self.rows.get(keep_for.request_id) if keep_for else None)
        kept = row.parent.request if row else keep_for
        others = [parent for parent in self._parents.values() if parent.held and parent.request is not kept]
        for parent in others:
            self._release(parent)
        return bool(others)

    def hold_cached(self, request: Request, block_map: CachedBlockMap, indices: Sequence[int]) -> None:
        """Hold blocks of a waiting request that are cached, by their index, until it is admitted."""
        blocks = self.cache.find_blocks([block_map.keys[index] for index in indices])
        self.hold(request, dict(zip(indices, blocks, strict=True)))

    def hold(self, request: Request, blocks: Mapping[int, KVCacheBlock], *, fetched: bool = False) -> None:
        """Hold blocks of a waiting request, by their index, until it is admitted."""
        parent = self._parents.setdefault(request.request_id, Parent(request))
        if fetched:
            parent.fetched.update(blocks)
        new = {index: block for index, block in blocks.items() if index not in parent.held}
        self._pool.touch(list(new.values()))
        parent.held.update(new)

    def begin_anew(self) -> None:
        """Begin anew: the prefix cache was reset, and vLLM made a new map."""
        self.cache = watch_cache(self._pool)
        self._parents.clear()

    def count_running(self) -> int:
        """Count the fill requests that run."""
        return sum(row.request.status == RequestStatus.RUNNING for row in self.rows.values())

    def count_held(self) -> Counter[int]:
        """Count how often each block is held, by its id."""
        return Counter(block.block_id for parent in self._parents.values() for block in parent.held.values())

    def look(self, request: Request) -> tuple[CachedBlockMap, Hits]:
        """Look up what is cached of the request: O(blocks) the first time, then kept up to date while it waits."""
        block_map = self.cache.watchers.get(request.request_id) or CachedBlockMap(request.block_hashes, self.cache)
        hits = find_hits(block_map.cached, self.limit_of(request))
        if hits.islands or self._looked_at == request.request_id:
            self.cache.watchers[request.request_id] = block_map
        self._looked_at = request.request_id
        return block_map, hits

    def limit_of(self, request: Request) -> int:
        """Return how many of the request's blocks can be reused: its last token is computed in any case."""
        return (request.num_tokens - 1) // self._block_size

    def _count(self, parent: Parent, filled_tokens: int) -> None:
        if parent.rows:
            self.stats.segments[len(parent.rows) + 1] += 1
        elif parent.lacked_room:
            self.stats.fallbacks[_NO_ROOM] += 1
        self.stats.islands_dropped += parent.dropped
        self.stats.fill_tokens += filled_tokens

    def has_room(self, request: Request, block_map: CachedBlockMap) -> bool:
        """Tell whether the whole request fits beside what runs: else filling would only keep blocks from others."""
        parent = self._parents.get(request.request_id)
        wanted = cdiv(request.num_tokens, self._block_size)
        free = self._pool.get_num_free_blocks() - self._manager.watermark_blocks
        if wanted - (len(parent.held) if parent is not None else 0) <= free:
            return True
        if wanted - block_map.cached.count(1) > free:
            return False
        hit_blocks = self.cache.find_blocks(list(itertools.compress(block_map.keys, block_map.cached)))
        return wanted - sum(block.ref_cnt > 0 for block in hit_blocks) <= free

    def _release(self, parent: Parent) -> None:
        # The last first, as vLLM frees a request's blocks.
        self._pool.free_blocks([parent.held[index] for index in sorted(parent.held, reverse=True)])
        parent.held.clear()


def _is_startable(request: Request) -> bool:
    if request.status != RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
        return request.status in _STARTABLE
    waits_for = request.structured_output_request
    return waits_for is not None and waits_for.grammar is not None and not isinstance(waits_for.grammar, Exception)


def find_obstacle(request: Request) -> str | None:
    """Find why the request can have no gaps; None if it can."""
    if request.skip_reading_prefix_cache:
        return "cache not read"
    if request.pooling_params is not None:
        return "pooling"
    if request.prompt_embeds is not None:
        return "prompt embeddings"
    if request.has_encoder_inputs:
        return "multi-modal input"
    return "streaming input" if request.resumable else None


def _make_request(parent: Parent, gap: Interval, block_size: int, number: int) -> Request:
    whole = parent.request
    fill = Request(
        request_id=f"{whole.request_id}{FILL_MARK}{number}",
        prompt_token_ids=whole.all_token_ids[: gap.end * block_size],
        # One token is sampled, because vLLM ends no request before; it is thrown away.
        sampling_params=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, detokenize=False),
        pooling_params=None,
        client_index=whole.client_index,
        arrival_time=whole.arrival_time,
        lora_request=whole.lora_request,
        cache_salt=whole.cache_salt,
        priority=whole.priority,
    )
    fill.block_hashes = whole.block_hashes[: gap.end]
    return fill
