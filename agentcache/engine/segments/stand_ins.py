"""Takes the place of vLLM's request queue and KV cache manager.

The queue shows fill requests in front of the one that is next. The manager looks for room, and counts gaps that were
filled as computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from agentcache.engine.segments.gap_filler import GapFiller
from agentcache.engine.vllm.patches import replace
from agentcache.engine.vllm.types import KVCacheBlocks, KVCacheManager, Request, RequestQueue

if TYPE_CHECKING:
    from agentcache.engine.segments.scheduler import MultiSegmentScheduler


class FillingQueue(RequestQueue):
    """Show fill requests at the front of vLLM's own queue, which keeps the order. They are never stored in it."""

    def __init__(self, queue: RequestQueue, filler: GapFiller) -> None:
        self._queue = queue
        self._filler = filler
        self._front: Request | None = None

    def peek_request(self) -> Request:
        """Return the request at the front: a fill request as long as the next one needs any."""
        self._front = self._filler.next_row(self._queue.peek_request())
        return self._front

    def pop_request(self) -> Request:
        """Take the request at the front.

        Where a fill request could not be scheduled, its parent leaves the queue: what keeps a fill
        request from running keeps its parent, too, and both are looked at again in the next step.
        """
        front, self._front = self._front, None
        if front is not None and front.request_id in self._filler.rows:
            return front
        return self._queue.pop_request()

    def add_request(self, request: Request) -> None:
        """Add a client's request to vLLM's queue."""
        self._queue.add_request(request)

    def prepend_request(self, request: Request) -> None:
        """Put a request back at the front, unless it is a fill request: those are planned anew after a preemption."""
        if request.request_id not in self._filler.rows:
            self._queue.prepend_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Put requests back at the front of vLLM's queue."""
        self._queue.prepend_requests(requests)

    def remove_request(self, request: Request) -> None:
        """Take out a request that waits."""
        self._front = None
        self._queue.remove_request(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Take out those of the requests that wait."""
        self._front = None
        self._queue.remove_requests(requests)

    def __bool__(self) -> bool:
        """Tell whether any client's request waits."""
        return bool(self._queue)

    def __len__(self) -> int:
        """Return the number of clients' requests that wait."""
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        """Iterate over the clients' requests that wait."""
        return iter(self._queue)


class SteeredCacheManager(KVCacheManager):
    """Has the state of vLLM's own manager, whose class it takes, and does as its scheduler wants."""

    scheduler: MultiSegmentScheduler

    def allocate_slots(self, request: Request, num_new_tokens: int, *args: Any, **kwargs: Any) -> KVCacheBlocks | None:
        """Allocate blocks; look for room before vLLM preempts for a request that finds none."""
        self.scheduler.note_taker(request)
        blocks = super().allocate_slots(request, num_new_tokens, *args, **kwargs)
        if blocks is None and self.scheduler.make_room(request):
            blocks = super().allocate_slots(request, num_new_tokens, *args, **kwargs)
        if blocks is None:
            self.scheduler.choose_victim(request)
        return blocks

    def get_computed_blocks(self, request: Request, *limit: int | None) -> tuple[KVCacheBlocks, int, int]:
        """Find the cached blocks that a request begins with. vLLM 0.33 gives the most tokens, None for any.

        A request for which a fill request was planned has been looked up then. KV events need vLLM's own look-up.
        """
        # With returned routed experts there is a limit: such engines fill no gaps.
        is_limited = any(tokens is not None for tokens in limit)
        filler = None if is_limited or self.scheduler.enable_kv_cache_events else self.scheduler.gap_filler
        if filler is None or (prefix := filler.find_prefix(request)) is None:
            return super().get_computed_blocks(request, *limit)
        groups, tokens, boundary = prefix
        return self.create_kv_cache_blocks(groups), tokens, boundary

    def record_prefix_cache_stats(self, request: Request, num_hits: int) -> None:
        """Record an admission: that of a fill request nowhere else, that of others without what was brought."""
        filler = self.scheduler.gap_filler
        brought = (0, 0) if filler is None else filler.admit(request, num_hits)
        if brought is None:
            self.scheduler.register_fill(request)
            return
        filled, fetched = brought
        stats = request.prefill_stats
        if filled + fetched and stats is not None and request.num_preemptions == 0:
            local = stats.num_local_cached_tokens - filled - fetched
            stats.set(stats.num_prompt_tokens, local, stats.num_external_cached_tokens + fetched)
        super().record_prefix_cache_stats(request, num_hits - filled - fetched)


def steer(scheduler: MultiSegmentScheduler, kind: type[SteeredCacheManager] = SteeredCacheManager) -> None:
    """Let the scheduler's cache manager do as it wants."""
    manager = scheduler.kv_cache_manager
    replace(manager, "__class__", kind)
    assert isinstance(manager, SteeredCacheManager)
    manager.scheduler = scheduler
