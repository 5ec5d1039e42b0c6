"""Estimates how much prefill the policy saves or loses against a shadow LRU, while the engine runs.

The shadow holds what stock vLLM's prefix cache would, as block hashes without blocks. It gets the same requests at the
same times. Under LRU they would have run at other times, and jobs' next requests would have come at others: of that it
knows nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from itertools import chain, islice
from typing import NamedTuple

from agentcache.engine.parts import Part
from agentcache.engine.segments.obstacles import has_full_attention_alone
from agentcache.engine.views import ComparisonCounts
from agentcache.engine.vllm.base import cdiv
from agentcache.engine.vllm.types import Request, Scheduler
from agentcache.errors import IntegrityError
from agentcache.policy.reuse_plan import Interval, SegmentCosts


class _Held(NamedTuple):
    """What a running request keeps: hashed blocks, and blocks without a hash."""

    hashes: tuple[bytes, ...]
    unhashed: int


class ShadowLru:
    """A cache of `num_blocks` blocks that evicts the least recently used, told of requests as they come and end.

    A request hits the longest prefix of its blocks that is here. It takes room for its whole prompt when it is
    admitted, and keeps it until it ends, however often it is preempted. Then its blocks become the most recently used,
    its first block the most of all. What a request uses is never evicted: if that is more than the cache has room for,
    the shadow overflows until requests end.

    Where it differs from vLLM it mostly hits more: a prompt's blocks are here at once and not chunk by chunk, a reply
    takes room only when it ends, and a block is here once though vLLM may have computed it twice.

    Hashes are chained: a block is known by all that come before it. So it is never here longer than those, and never
    used by more requests. Both calls cost O(blocks of the request).
    """

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        # Blocks that no request uses, the next victim first.
        self._free: OrderedDict[bytes, None] = OrderedDict()
        # How many requests use a block.
        self._users: Counter[bytes] = Counter()
        # Used blocks that some request has computed: with one of them all that come before it.
        self._computed: set[bytes] = set()
        self._held: dict[str, _Held] = {}
        self._unhashed = 0

    def __contains__(self, name: object) -> bool:
        """Tell whether a request of this name has been admitted and has not ended."""
        return name in self._held

    def admit(self, name: str, hashes: Sequence[bytes], *, num_blocks: int, most_hits: int) -> int:
        """Admit a request of `num_blocks` blocks, the first of which have these hashes. Return how many it hits."""
        if name in self._held:
            raise ValueError(f"{name} has been admitted already")
        free, users = self._free, self._users
        # known:  used, used, used | free, free | new, new, new
        known = bisect_left(hashes, True, key=lambda block_hash: block_hash not in users and block_hash not in free)
        hits = min(known, most_hits)
        for block_hash in islice(hashes, known):
            if block_hash in free:
                del free[block_hash]
                self._computed.add(block_hash)
        users.update(hashes)
        self._held[name] = _Held(tuple(hashes), num_blocks - len(hashes))
        self._unhashed += num_blocks - len(hashes)
        self._evict()
        return hits

    def end(self, name: str, hashes: Sequence[bytes], *, num_blocks: int) -> None:
        """End a request of `num_blocks` blocks by now, the first of which have these hashes and are computed.

        Blocks of its prompt that were never computed are forgotten, unless others use them. Nothing happens if the
        request is not here.
        """
        held = self._held.pop(name, None)
        if held is None:
            return
        grown = max(0, num_blocks - len(held.hashes) - held.unhashed)
        self._unhashed += grown
        self._evict()
        self._unhashed -= grown + held.unhashed
        free, users, computed = self._free, self._users, self._computed
        known = bisect_left(held.hashes, True, key=lambda block_hash: block_hash not in computed)
        left = hashes if len(hashes) > known else held.hashes[:known]
        shared = bisect_left(held.hashes, True, key=lambda block_hash: users[block_hash] == 1)
        for block_hash in islice(held.hashes, shared):
            users[block_hash] -= 1
        for block_hash in held.hashes[shared:]:
            # A Counter's own `del` runs in Python.
            users.pop(block_hash)
        computed.difference_update(held.hashes[shared:])
        in_use = bisect_left(left, True, key=lambda block_hash: block_hash not in users)
        computed.update(left[:in_use])
        for block_hash in reversed(left[in_use:]):
            free[block_hash] = None
            free.move_to_end(block_hash)
        self._evict()

    def clear(self) -> None:
        """Forget everything, running requests included: the prefix cache was reset."""
        self._free.clear()
        self._users.clear()
        self._computed.clear()
        self._held.clear()
        self._unhashed = 0

    def list_free(self) -> list[bytes]:
        """List the blocks that may be evicted, the next victim first."""
        return list(self._free)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless each block is free or used, as often as requests say, and all have room."""
        used = Counter(chain.from_iterable(held.hashes for held in self._held.values()))
        if used != self._users or self._unhashed != sum(held.unhashed for held in self._held.values()):
            raise IntegrityError("the shadow LRU's used blocks are not those of its requests")
        if idle := self._computed - self._users.keys():
            raise IntegrityError(f"blocks of the shadow LRU that count as used and are not: {list(idle)[:20]}")
        if both := self._users.keys() & self._free.keys():
            raise IntegrityError(f"blocks of the shadow LRU that are both free and used: {list(both)[:20]}")
        if self._free and self._count() > self._num_blocks:
            raise IntegrityError(f"the shadow LRU has {self._count()} blocks, and room for {self._num_blocks}")

    def _count(self) -> int:
        return len(self._free) + len(self._users) + self._unhashed

    def _evict(self) -> None:
        for _ in range(min(self._count() - self._num_blocks, len(self._free))):
            self._free.popitem(last=False)


class LruComparison(Part):
    """Told of requests that are admitted and that end. Costs O(blocks of the request), and nothing in a step.

    A request counts once, when it is admitted first: what preemptions make it compute again is in neither cache.
    """

    def __init__(self, shadow: ShadowLru, costs: SegmentCosts) -> None:
        self.stats = ComparisonCounts()
        self._shadow = shadow
        self._costs = costs

    def admitted(self, request: Request, hit_tokens: int, filled: Collection[int]) -> None:  # noqa: ARG002
        """Count a client's request that holds its blocks and runs, unless it runs again after a preemption.

        `filled` are its blocks, by index, that fill requests have computed for it.
        """
        if request.request_id in self._shadow:
            return
        size = self._costs.block_size
        prefill = request.prefill_stats
        reused_tokens = prefill.num_cached_tokens if prefill is not None else 0
        lru_blocks = self._shadow.admit(
            request.request_id,
            request.block_hashes,
            num_blocks=cdiv(request.num_tokens, size),
            # The last token is computed in any case.
            most_hits=0 if request.skip_reading_prefix_cache else (request.num_tokens - 1) // size,
        )
        self.stats.prompt_tokens += request.num_tokens
        self.stats.reused_tokens += reused_tokens
        self.stats.lru_tokens += lru_blocks * size
        saved_s = find_saving(self._costs, reused_tokens // size, filled, lru_blocks)
        if saved_s > 0:
            self.stats.saved_s += saved_s
        else:
            self.stats.lost_s -= saved_s

    def ended(self, request: Request) -> None:
        """Note that a request is over. One that never ran is not known here."""
        size = self._costs.block_size
        computed = min(request.num_computed_tokens, request.num_tokens - 1)
        self._shadow.end(
            request.request_id,
            request.block_hashes[: computed // size],
            num_blocks=cdiv(request.num_computed_tokens, size),
        )

    def reset(self) -> None:
        """Forget what was cached: the prefix cache was reset."""
        self._shadow.clear()

    def check_integrity(self) -> None:
        """Raise IntegrityError when the shadow contradicts itself."""
        self._shadow.check_integrity()


def find_saving(costs: SegmentCosts, reused: int, filled: Collection[int], lru: int) -> float:
    """Return the seconds of prefill that a request saves which reuses so many blocks, against its first `lru` blocks.

    The blocks that it reuses are its first ones but for the `filled`, which fill requests computed.
    """
    end = reused + len(filled)
    between_s = costs.island_s(Interval(min(end, lru), max(end, lru)))
    fill_requests = sum(index - 1 not in filled for index in filled)
    filled_s = sum(map(costs.block_s, filled)) + fill_requests * costs.row_s
    return (between_s if end > lru else -between_s) - filled_s


def make_comparison(scheduler: Scheduler, get_costs: Callable[[], SegmentCosts]) -> LruComparison | None:
    """Make it where a request's block hashes and their prices tell what LRU would have hit and saved, else None."""
    manager = scheduler.kv_cache_manager
    hashes_are_of_blocks = manager.enable_caching and scheduler.hash_block_size == scheduler.block_size
    if not hashes_are_of_blocks or not has_full_attention_alone(scheduler.kv_cache_config):
        return None
    # One block is vLLM's placeholder.
    return LruComparison(ShadowLru(manager.block_pool.num_gpu_blocks - 1), get_costs())
