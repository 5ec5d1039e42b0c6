"""Explains why a prompt's tokens were not in the cache, and counts which cache supplied those that were.

Counts only: nothing is decided here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import takewhile

from agentcache.engine.jobs.request_state import RequestState, reusable_hashes
from agentcache.engine.jobs.turn_chains import Overlap
from agentcache.engine.marks import read_left
from agentcache.engine.observe.ledger import Eviction, Ledger
from agentcache.engine.observe.views import PLACE_OF, HitPlace, LossView, MissReason
from agentcache.engine.parts import Part
from agentcache.engine.vllm.types import CacheHitSource, KVCacheBlock, PrefillStats, Request
from agentcache.engine.vllm.workers import KVConnectorBase_V1
from agentcache.policy.price import ReturnPrice

_MAX_LOSSES = 3


def find_missed(blocks: int, cached: int, filled: Collection[int]) -> list[int]:
    """List the blocks of a prompt, by their index, that were computed for it: those in gaps, and all at its end.

    Args:
        blocks: Full blocks that could have been hit.
        cached: Of those, how many were hit without having been computed for the request.
        filled: The blocks in gaps that fill requests had computed for it before.
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


class MissLog(Part):
    """`block_size` is that of a request's block hashes, `ledger` knows what was evicted; `clock` gives seconds.

    `states` are those of jobs' requests that are in the engine, by their id. Where there is a CPU cache, `price` learns
    how many evicted blocks a request that was admitted computes again.
    """

    def __init__(
        self,
        block_size: int,
        ledger: Ledger,
        clock: Callable[[], float],
        states: Mapping[str, RequestState],
        *,
        price: ReturnPrice | None = None,
    ) -> None:
        self._block_size = block_size
        self._ledger = ledger
        self._clock = clock
        self._states = states
        self._price = price

    def evicted(self, blocks: Sequence[KVCacheBlock], request_id: str) -> None:
        """Note blocks that are evicted for the client's request of this id, and still have their hashes."""
        state = self._states.get(request_id)
        self._ledger.note_evicted(blocks, state.entry.client_session if state is not None else "")

    def admitted(self, request: Request, hit_tokens: int, filled: Collection[int]) -> None:  # noqa: ARG002
        """Tell of a job's request that runs for the first time what it missed and why. It computes these blocks now.

        `filled` are its blocks, by index, that fill requests have computed for it.
        """
        state = self._states.get(request.request_id)
        if state is None or state.has_run:
            return
        cached_tokens = request.prefill_stats.num_cached_tokens if request.prefill_stats is not None else 0
        if cached_tokens < request.num_prompt_tokens:
            self._explain(request, state, filled, cached_tokens)

    def _explain(self, request: Request, state: RequestState, filled: Collection[int], cached_tokens: int) -> None:
        size = self._block_size
        hashes = reusable_hashes(request, size)
        missed = find_missed(len(hashes), cached_tokens // size, filled)
        evicted = self._ledger.take(hashes, missed)
        if self._price is not None:
            self._price.note_lost(len(evicted))
        reads_cache = not request.skip_reading_prefix_cache
        state.turn.misses = explain_misses(
            missed,
            request.num_prompt_tokens - cached_tokens,
            evicted,
            state.overlap,
            size,
            left_tokens=read_left(request),
            reads_cache=reads_cache,
            all_remembered=self._ledger.forgotten_s < state.left_s,
        )
        if reads_cache:
            causes = Counter(cause for eviction in evicted.values() if (cause := eviction.cause) is not None)
            state.turn.evicted_from = {cause: blocks * size for cause, blocks in causes.items()}
            state.turn.lost_to = view_losses(evicted, self._clock(), size)

    def reset(self) -> None:
        """Forget what was evicted: the cache was emptied."""
        self._ledger.clear()

    def abandon(self) -> None:
        """Forget what was evicted: nothing is told from now on."""
        self._ledger.clear()
        if self._price is not None:
            self._price.settle()


_PLACES: Mapping[CacheHitSource, HitPlace] = {
    CacheHitSource.DEVICE: "gpu",
    CacheHitSource.HOST: "host",
    CacheHitSource.DISK: "disk",
}


def find_places(connector: KVConnectorBase_V1 | None, request: Request, stats: PrefillStats) -> dict[HitPlace, int]:
    """Split the cached tokens of a request that has just been admitted by the place that supplied them.

    vLLM asks its connectors the same for `vllm:prompt_tokens_cached_by_source`, once what they load is known. `gpu` and
    `host` are always there, other places where tokens came from them. What a connector cannot place, or adds up to
    another number, came from `elsewhere`.

    Returns:
        Nothing without a connector: there is one cache alone.
    """
    if connector is None:
        return {}
    places: Counter[HitPlace] = Counter({"gpu": stats.num_local_cached_tokens, "host": 0})
    brought = stats.num_external_cached_tokens
    sources = connector.get_external_cache_hit_sources(request, brought) if brought else {}
    if sum(sources.values()) != brought:
        sources = {CacheHitSource.EXTERNAL_UNSPECIFIED: brought}
    for source, tokens in sources.items():
        places[_PLACES.get(source, "elsewhere")] += tokens
    return dict(places)
