"""Both caches together: which copies go on between them, and what is done when they end."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from agentcache.engine.cached_blocks import KV_CACHE_GROUP, CachedBlockMap
from agentcache.engine.cpu_cache.fetching import Fetch, Fetching
from agentcache.engine.cpu_cache.host_cache import Store
from agentcache.engine.cpu_cache.storing import Storing
from agentcache.engine.parts import Part
from agentcache.engine.segments.fill_request import find_obstacle
from agentcache.engine.segments.gap_filler import GapFiller
from agentcache.engine.segments.scheduler import MultiSegmentScheduler
from agentcache.engine.views import TierCounts
from agentcache.engine.vllm.base import cdiv, init_logger
from agentcache.engine.vllm.connector import CopiesDone
from agentcache.engine.vllm.copiers import CopyOrders
from agentcache.engine.vllm.types import KVCacheBlock, Request, Scheduler, SchedulerOutput
from agentcache.errors import IntegrityError
from agentcache.policy.price import ReturnPrice

logger = init_logger("vllm.agentcache")

# So long what is on its way to the GPU may take the link. What a request wants beyond that comes in parts.
_MOST_FETCHES_S = 0.1


def find_filled(scheduler: Scheduler, step: SchedulerOutput) -> set[int]:
    """Find the blocks that a step which has just been scheduled fills, by their ids: they must not be stored yet.

    Their hashes stand on them by now, their KV comes with the step. O(rows of the step + blocks that it fills).
    """
    filled: set[int] = set()
    size, get_blocks = scheduler.block_size, scheduler.kv_cache_manager.get_blocks
    for name, tokens in step.num_scheduled_tokens.items():
        computed = scheduler.requests[name].num_computed_tokens
        first, end = computed // size, (computed + tokens) // size
        if first < end:
            filled.update(block.block_id for block in get_blocks(name).blocks[KV_CACHE_GROUP][first:end])
    return filled


class Copies:
    """Fetches that are added between two steps become one copy: they end together."""

    def __init__(self, workers: int, most_fetched: int) -> None:
        """Take how many of vLLM's workers make each copy.

        At most `most_fetched` blocks, or one fetch of more, are on their way to the GPU at a time.
        """
        self._numbers = itertools.count()
        self.stores: dict[int, Store] = {}
        self.most_fetched = most_fetched
        self._fetches: dict[int, Fetch] = {}
        self._added: list[Fetch] = []
        self._workers = workers
        # Of copies that have not ended at all workers.
        self._reported = CopiesDone()
        # In this step a request was made to wait for the link.
        self._link_full = False

    @property
    def fetches(self) -> Iterable[Fetch]:
        """Those under way, and those that are about to begin."""
        return itertools.chain(self._fetches.values(), self._added)

    @property
    def is_fetching(self) -> bool:
        """Tell whether blocks are on their way to the GPU."""
        return bool(self._fetches or self._added)

    def add(self, fetch: Fetch) -> None:
        """Have a fetch begin beside the next step."""
        self._added.append(fetch)

    def is_link_full(self, blocks: int) -> bool:
        """Tell whether a fetch of so many blocks must wait for those before it.

        All fetches that begin in one step end together. Began all at once, the first request would wait for what the
        last one wants, and their blocks would leave no room for what could run meanwhile.
        """
        under_way = sum(len(fetch.blocks) for fetch in self.fetches)
        # Who is next in the queue stays next: a small fetch behind a large one does not pass it.
        self._link_full = self._link_full or bool(under_way and under_way + blocks > self.most_fetched)
        return self._link_full

    def begin(self, store: Store | None) -> CopyOrders:
        """Begin the store and what was added, beside the step that has just been scheduled."""
        self._link_full = False
        metadata = CopyOrders()
        if store is not None:
            metadata.store_event = number = next(self._numbers)
            self.stores[number] = store
            metadata.store_gpu_blocks = [block.block_id for block in store.blocks]
            metadata.store_cpu_blocks = [copy.block.block_id for copy in store.copies]
        if self._added:
            whole, self._added = Fetch.join(self._added), []
            metadata.load_event = number = next(self._numbers)
            self._fetches[number] = whole
            metadata.load_gpu_blocks = [block.block_id for block in whole.blocks]
            metadata.load_cpu_blocks = [block.block_id for block in whole.sources]
        return metadata

    def end(self, done: CopiesDone) -> tuple[list[tuple[Store, float | None]], list[tuple[Fetch, float | None]]]:
        """Take over what workers report since the last call: they do not end a copy in the same step.

        Returns:
            What has ended at all of them, with the seconds that it took them together; None if it failed at any.
        """
        reported = self._reported = self._reported.aggregate(done)
        whole = [number for number in done.ended if len(reported.ended[number]) == self._workers]
        ended = {number: _add_up(reported.ended.pop(number)) for number in whole}
        return (
            [(self.stores.pop(number), seconds) for number, seconds in ended.items() if number in self.stores],
            [(self._fetches.pop(number), seconds) for number, seconds in ended.items() if number in self._fetches],
        )


def _add_up(seconds: list[float | None]) -> float | None:
    known = [each for each in seconds if each is not None]
    return sum(known) if len(known) == len(seconds) else None


class Tier(Part):
    """Steers vLLM's workers: it says what to copy behind each step, and hears what has been copied."""

    def __init__(
        self,
        scheduler: MultiSegmentScheduler,
        *,
        storing: Storing,
        fetching: Fetching,
        filler: GapFiller,
        price: ReturnPrice,
    ) -> None:
        """Join the caches: `storing` chooses what is copied to the CPU cache, `fetching` what is copied back.

        `filler` holds blocks of waiting requests, `price` is told what was fetched.
        """
        self.host = storing.host
        self.storing = storing
        self.fetching = fetching
        self.counts = storing.counts
        self._scheduler = scheduler
        self._filler = filler
        self._price = price
        workers = scheduler.parallel_config.world_size
        self.copies = Copies(workers, most_fetched=max(1, int(_MOST_FETCHES_S / fetching.link.block_s)))

    @property
    def is_fetching(self) -> bool:
        """Tell whether blocks are on their way to the GPU."""
        return self.copies.is_fetching

    def make_wait(self, request: Request) -> bool:
        """Tell whether the request, next to be admitted, has to wait for the tier; begin to fetch what it lacks.

        A request without room is not made to wait: it waits for room, in its place.
        """
        if not self._must_wait(request):
            return False
        self._scheduler.note_wait(request, "fetch")
        self._filler.holds.ahead.add(request.request_id)
        return True

    def limit_prefill(self, tokens: int, decodes: int, requests: int) -> int:
        """Limit the prompt tokens of a step in which so many of the engine's requests decode.

        Returns:
            `tokens`, or 0 for steps of decodes alone.
        """
        has_prefill = decodes < requests
        if not decodes or not has_prefill:
            self.storing.gate.end_wait()
            return tokens
        return tokens if self.storing.gate.is_open(cdiv(tokens, self._scheduler.block_size)) else 0

    def admitted(self, request: Request, hit_tokens: int, filled: Collection[int]) -> None:  # noqa: ARG002
        """Note that the request runs: the GPU keeps its blocks until it ends."""
        self.host.note_hits(self._filler.finder.keys.find(request)[KV_CACHE_GROUP])

    def _must_wait(self, request: Request) -> bool:
        is_fill = request.request_id in self._filler.rows or self._filler.is_planned(request)
        if is_fill or find_obstacle(request) is not None:
            return False
        if self._awaits_fetch(request):
            return True
        on_gpu, _ = self._filler.look(request)
        if not (wanted := self.fetching.find_wanted(request, on_gpu)):
            return False
        most = self.copies.most_fetched
        if self.copies.is_link_full(min(len(wanted), most)):
            return True
        if not self._filler.has_room(request, on_gpu):
            self._filler.release_holds(keep_for=request)
            if not self._filler.has_room(request, on_gpu):
                return False
        if (fetch := self.fetching.begin(request, on_gpu, wanted, most)) is not None:
            self.copies.add(fetch)
        return True

    @property
    def needs_step(self) -> bool:
        """Tell whether the engine must go on although no request is left: to end copies, or to look for some."""
        return bool(self.copies.stores) or self.is_fetching or self.storing.looks.is_awaited

    def begin_copies(self, step: SchedulerOutput) -> CopyOrders:
        """Tell the workers what to copy beside the step that has just been scheduled.

        Raises:
            IntegrityError: A store would read a block while the step writes it.
        """
        idle = not step.total_num_scheduled_tokens
        store = self.storing.begin(idle=idle)
        if store is not None:
            filled = find_filled(self._scheduler, step)
            if not filled.isdisjoint(block.block_id for block in store.blocks):
                raise IntegrityError("a block is to be stored beside the step that computes it")
        return self.copies.begin(store)

    def end_copies(self, done: CopiesDone) -> None:
        """Take over what workers report since the last call. A copy that failed is as if never made."""
        stores, fetches = self.copies.end(done)
        for store, seconds in stores:
            if seconds is None:
                self.storing.fail(store)
            else:
                self.storing.end(store)
                self.counts.store_s += seconds
        for fetch, seconds in fetches:
            if seconds is None:
                self.fetching.fail(fetch)
                self.counts.failed_fetches += len(fetch.blocks)
            else:
                self.fetching.end(fetch)
                self.counts.fetched += len(fetch.blocks)
                self.counts.fetch_s += seconds
                self._price.note_kept(len(fetch.blocks))

    def evicted(self, blocks: Sequence[KVCacheBlock], request_id: str) -> None:  # noqa: ARG002
        """Note blocks that the GPU evicts, and that still have their hashes."""
        self.storing.note_taken(blocks)

    def can_reset(self) -> bool:
        """Tell whether the prefix cache may be reset: not while blocks are on their way from the CPU cache."""
        if self.is_fetching:
            logger.warning("The prefix cache is not reset: blocks are on their way from the CPU cache.")
        return not self.is_fetching

    def clear(self) -> bool:
        """Forget what is in the CPU cache. Return False, changing nothing, while blocks are being fetched."""
        if self.is_fetching:
            return False
        for store in self.copies.stores.values():
            store.abandoned = True
        self.host.reset()
        return True

    def count(self) -> TierCounts:
        """Count everything since the start."""
        return self.counts.model_copy(update={"used": self.host.used_blocks, "evicted": self.host.evictions.blocks})

    def count_held(self) -> Counter[int]:
        """Count how often each block of the GPU is held by copies, by its id."""
        return Counter(block.block_id for fetch in self.copies.fetches for block in fetch.blocks)

    def check_integrity(self) -> None:
        """Raise IntegrityError when the host's cache or the copies contradict themselves."""
        self.host.check_integrity()
        used = {copy.block.block_id for store in self.copies.stores.values() for copy in store.copies}
        used.update(block.block_id for fetch in self.copies.fetches for block in fetch.sources)
        if wrong := self.host.find_used().symmetric_difference(used):
            raise IntegrityError(f"blocks of the CPU cache in use without a copy, or the other way: {wrong}")
        keys = [copy.key for store in self.copies.stores.values() for copy in store.copies]
        if len(set(keys)) < len(keys) or any(map(self.host.map.holds, keys)):
            raise IntegrityError("a block is copied to the CPU cache twice")

    def count_elsewhere(self, request: Request) -> int:
        """Count the request's blocks that are in the CPU cache alone."""
        return self.fetching.count_here(request)

    def awaits_blocks(self, request: Request, on_gpu: CachedBlockMap) -> bool:
        """Tell whether blocks of the request are fetched, or are to be, by what the GPU has."""
        return self._awaits_fetch(request) or bool(self.fetching.find_wanted(request, on_gpu))

    def _awaits_fetch(self, request: Request) -> bool:
        return any(request.request_id in fetch.request_ids for fetch in self.copies.fetches)
