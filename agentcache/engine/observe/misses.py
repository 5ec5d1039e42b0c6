"""Explains why a prompt's tokens were not in the cache: what was evicted, when, for whom, how both caches lost it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from typing import NamedTuple

from agentcache.engine.cached_blocks import KV_CACHE_GROUP
from agentcache.engine.marks import read_left, reusable_hashes
from agentcache.engine.parts import Part
from agentcache.engine.request_state import Overlap, RequestState
from agentcache.engine.views import PLACE_OF, HitPlace, LossCause, LossView, MissReason
from agentcache.engine.vllm.types import (
    BlockHash,
    BlockHashWithGroupId,
    KVCacheBlock,
    Request,
    make_block_hash_with_group_id,
)
from agentcache.policy.price import ReturnPrice

# Of a block's hash: enough to tell blocks apart.
_HASH_BYTES = 8
# Evicted blocks that are remembered, for each block of the GPU's cache and in all. One takes about 200 bytes.
_CACHES = 4
_MAX_BLOCKS = 500_000
_MAX_LOSSES = 3


class Eviction(NamedTuple):
    """How a block was evicted from the last cache that had it.

    `taker` is the session of the request that got its room, "" if unknown, and for the CPU cache, whose room goes to
    copies for several sessions. `cause` is None where there is one cache, and while the other still has the block.
    `number` is that of the eviction from the GPU.
    """

    number: int
    time_s: float
    taker: str
    cause: LossCause | None = None


class Ledger:
    """Remembers of both caches what the GPU evicted last, four times what it has room for. O(1) a block.

    What a CPU cache does is told by its own parts. `is_on_host` tells whether it has a block, `is_copying` whether a
    block of the GPU, by its id, is being copied to it.
    """

    def __init__(
        self,
        num_blocks: int,
        clock: Callable[[], float],
        is_on_host: Callable[[BlockHashWithGroupId], bool] | None = None,
        is_copying: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Take the size of the GPU's cache. Without `is_on_host` there is no other."""
        self._capacity = min(_CACHES * num_blocks, _MAX_BLOCKS)
        self._clock = clock
        self._is_on_host = is_on_host
        self._is_copying = is_copying
        self._numbers = count()
        self._evicted: dict[bytes, Eviction] = {}
        # Number, time and blocks of each eviction from the GPU, the oldest first.
        self._batches: deque[tuple[int, float, list[bytes]]] = deque()
        self._noted = 0
        # By the block's id on the GPU, what has befallen what it holds, where something has.
        self._marks: dict[int, LossCause] = {}
        self.forgotten_s = -math.inf
        """When the latest eviction was that is forgotten."""

    def clear(self) -> None:
        """Forget all: the caches were emptied."""
        self._evicted.clear()
        self._batches.clear()
        self._marks.clear()
        self._noted = 0

    def ignore_host(self) -> None:
        """Forget what the CPU cache did, of which nothing is told from now on."""
        self._is_on_host = None
        self._marks.clear()
        self._evicted = {key: eviction._replace(cause=None) for key, eviction in self._evicted.items()}

    def note_evicted(self, blocks: Iterable[KVCacheBlock], taker: str) -> None:
        """Note that the GPU loses these blocks now, which still have their hashes, for a request of this session."""
        number, now_s = next(self._numbers), self._clock()
        keys = []
        evictions: dict[LossCause | None, Eviction] = {}
        for block in blocks:
            mark = self._marks.pop(block.block_id, None)
            if (block_hash := block.block_hash) is None:
                continue
            cause = self._find_cause(block, block_hash, mark)
            if cause not in evictions:
                evictions[cause] = Eviction(number, now_s, "" if cause == "evicted" else taker, cause)
            keys.append(key := block_hash[:_HASH_BYTES])
            self._evicted[key] = evictions[cause]
        if keys:
            self._batches.append((number, now_s, keys))
            self._noted += len(keys)
        while self._noted > self._capacity:
            self._forget_oldest()

    def _find_cause(
        self, block: KVCacheBlock, block_hash: BlockHashWithGroupId, mark: LossCause | None
    ) -> LossCause | None:
        if self._is_on_host is None or self._is_on_host(block_hash):
            return None
        return "overwritten" if mark != "evicted" and self._is_copying(block.block_id) else mark or "never chosen"

    def _forget_oldest(self) -> None:
        number, self.forgotten_s, keys = self._batches.popleft()
        self._noted -= len(keys)
        for key in keys:
            # It may have been computed, and evicted again later.
            if (eviction := self._evicted.get(key)) is not None and eviction.number == number:
                del self._evicted[key]

    def note_use(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Note that blocks of the GPU were used: they may be worth a copy now, and find room."""
        marks = self._marks
        for block in blocks:
            if marks and marks.get(block.block_id) != "evicted":
                marks.pop(block.block_id, None)

    def note_not_copied(self, blocks: Iterable[int], cause: LossCause) -> None:
        """Note why blocks of the GPU, by their id, were not copied when they were about to be evicted."""
        for block_id in blocks:
            if self._marks.get(block_id) != "evicted":
                self._marks[block_id] = cause

    def note_copies_lost(self, keys: Iterable[BlockHashWithGroupId], on_gpu: Collection[KVCacheBlock]) -> None:
        """Note that the CPU cache loses these; those that are `on_gpu` are there still."""
        self._marks.update((block.block_id, "evicted") for block in on_gpu)
        kept = {block.block_hash for block in on_gpu}
        now_s = self._clock()
        for block_hash in keys:
            key = block_hash[:_HASH_BYTES]
            if block_hash not in kept and (eviction := self._evicted.get(key)) is not None:
                self._evicted[key] = Eviction(eviction.number, now_s, "", "evicted")

    def take(self, hashes: Sequence[bytes], missed: Iterable[int]) -> dict[int, Eviction]:
        """Find those of a prompt's missed blocks that were evicted, by their index; they are computed again now."""
        if not self._evicted:
            return {}
        found = ((index, self._evicted.pop(hashes[index][:_HASH_BYTES], None)) for index in missed)
        return {index: self._look(hashes[index], eviction) for index, eviction in found if eviction is not None}

    def _look(self, block_hash: bytes, eviction: Eviction) -> Eviction:
        key = make_block_hash_with_group_id(BlockHash(block_hash), KV_CACHE_GROUP)
        is_there = self._is_on_host is not None and self._is_on_host(key)
        return eviction._replace(cause="not fetched") if is_there else eviction


def find_missed(blocks: int, cached: int, filled: Collection[int]) -> list[int]:
    """List the blocks of a prompt, by their index, that were computed for it: those in gaps, and all at its end.

    So many full `blocks` could have been hit; `cached` of them were, without having been computed for the request.
    `filled` are the blocks in gaps that fill requests had computed for it before.
    """
    in_gaps = []
    begins_with = cached
    for index in sorted(filled):
        if index <= begins_with:
            in_gaps.append(index)
            begins_with += 1
    return [*in_gaps, *range(begins_with, blocks)]


def explain_misses(
    missed: Sequence[int],
    missed_tokens: int,
    evicted: Mapping[int, Eviction],
    overlap: Overlap,
    block_size: int,
    *,
    left_tokens: int = 0,
    reads_cache: bool = True,
    all_remembered: bool = False,
) -> dict[MissReason, int]:
    """Divide the missed tokens by reason; reasons without any are left out.

    What was never there and what has changed cannot be told apart block by block: as many tokens count as changed as
    the last turn had behind the place where the prompt leaves it.

    Args:
        missed: Blocks of `block_size` tokens by their index, in order.
        missed_tokens: The tokens of these blocks and of what fills no block.
        evicted: Those of `missed` that were evicted.
        overlap: With the last turn of the job.
        block_size: Of `missed`.
        left_tokens: Those of the prompt that are cached at the engine which the job has just left.
        reads_cache: Whether the request may hit anything.
        all_remembered: Whether all that was evicted since the last turn is known: what else it left is in the cache.
    """
    # Blocks up to here were cached at one time: a hash stands for all tokens before it.
    known = max(max(evicted, default=-1) + 1, overlap.shared_tokens // block_size)
    first = min(evicted, default=known)
    reasons: Counter[MissReason] = Counter()
    for index in takewhile(lambda index: index < known, missed):
        is_there = index not in evicted and (index > first or all_remembered)
        reason: MissReason = ("behind a gap" if index > first else "not read") if is_there else "evicted"
        reasons[reason if reads_cache else "not read"] += block_size
    rest = missed_tokens - reasons.total()
    reasons["changed"] = min(rest, overlap.abandoned_tokens)
    left = sum(known <= index < left_tokens // block_size for index in missed) * block_size
    reasons["at another engine"] = min(rest - reasons["changed"], left)
    reasons["new"] = missed_tokens - reasons.total()
    return dict(+reasons)


def view_losses(evicted: Mapping[int, Eviction], now_s: float, block_size: int) -> tuple[LossView, ...]:
    """View the evictions that cost most, at most three, the largest first. What was not fetched was not lost."""
    times_s: defaultdict[tuple[HitPlace | None, str], list[float]] = defaultdict(list)
    for _, time_s, taker, cause in evicted.values():
        if cause != "not fetched":
            times_s[None if cause is None else PLACE_OF[cause], taker].append(time_s)
    largest = sorted(times_s.items(), key=lambda lost: -len(lost[1]))[:_MAX_LOSSES]
    return tuple(
        LossView(
            tokens=len(lost_s) * block_size,
            place=place,
            evicted_s=max(lost_s),
            ago_s=now_s - max(lost_s),
            taker=taker or None,
        )
        for (place, taker), lost_s in largest
    )


@dataclass(eq=False)
class MissLog(Part):
    """`block_size` is that of a request's block hashes, `ledger` knows what was evicted; `clock` gives seconds.

    `states` are those of jobs' requests that are in the engine, by their id. Where there is a CPU cache, `price` learns
    how many evicted blocks a request that was admitted computes again.
    """

    block_size: int
    ledger: Ledger
    clock: Callable[[], float]
    states: Mapping[str, RequestState]
    price: ReturnPrice | None = None

    def evicted(self, blocks: Sequence[KVCacheBlock], request_id: str) -> None:
        """Note blocks that are evicted for the client's request of this id, and still have their hashes."""
        state = self.states.get(request_id)
        self.ledger.note_evicted(blocks, state.entry.client_session if state is not None else "")

    def admitted(self, request: Request, hit_tokens: int, filled: Collection[int]) -> None:  # noqa: ARG002
        """Tell of a job's request that runs for the first time what it missed and why. It computes these blocks now.

        `filled` are its blocks, by index, that fill requests have computed for it.
        """
        state = self.states.get(request.request_id)
        if state is None or state.has_run:
            return
        cached_tokens = request.prefill_stats.num_cached_tokens if request.prefill_stats is not None else 0
        if cached_tokens < request.num_prompt_tokens:
            self._explain(request, state, filled, cached_tokens)

    def _explain(self, request: Request, state: RequestState, filled: Collection[int], cached_tokens: int) -> None:
        size = self.block_size
        hashes = reusable_hashes(request, size)
        missed = find_missed(len(hashes), cached_tokens // size, filled)
        evicted = self.ledger.take(hashes, missed)
        if self.price is not None:
            self.price.note_lost(len(evicted))
        reads_cache = not request.skip_reading_prefix_cache
        state.turn.misses = explain_misses(
            missed,
            request.num_prompt_tokens - cached_tokens,
            evicted,
            state.overlap,
            size,
            left_tokens=read_left(request),
            reads_cache=reads_cache,
            all_remembered=self.ledger.forgotten_s < state.left_s,
        )
        if reads_cache:
            causes = Counter(cause for eviction in evicted.values() if (cause := eviction.cause) is not None)
            state.turn.evicted_from = {cause: blocks * size for cause, blocks in causes.items()}
            state.turn.lost_to = view_losses(evicted, self.clock(), size)

    def reset(self) -> None:
        """Forget what was evicted: the cache was emptied."""
        self.ledger.clear()

    def abandon(self) -> None:
        """Forget what was evicted: nothing is told from now on."""
        self.ledger.clear()
        if self.price is not None:
            self.price.settle()
