"""Copies to the CPU cache the blocks that the GPU evicts next.

Nothing is held while it is copied. When the GPU takes a block for other tokens meanwhile, the map of cached blocks
reports it, and its copy is thrown away. What is copied was free when the step was scheduled: only a later step can
write over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import compress

from agentcache._evictor import Evictor, FreeContext
from agentcache.engine.blocks.block_queue import BlockQueue
from agentcache.engine.cached_blocks import HitFinder
from agentcache.engine.cpu_cache.host_cache import LEFT, UNKNOWN_USE, HostCache, LastUse, Store, StoredBlock
from agentcache.engine.observe.misses import Ledger
from agentcache.engine.parts import Observers
from agentcache.engine.views import TierCounts
from agentcache.engine.vllm.base import cdiv
from agentcache.engine.vllm.types import BlockHashWithGroupId, KVCacheBlock, Scheduler
from agentcache.policy.price import Usefulness

# While a block is copied it goes last: its loss can be avoided, however little it is worth.
_COPYING_S = 1e3
# Steps whose new tokens take blocks that are copied already: a copy is known to have been made some three steps after
# it was asked for, and until it is needed both caches have the block. Of 2, 4 and 8, simulated on closed loops.
_STEPS_AHEAD = 4
# Steps whose new tokens take as many victims as are copied beside one
# (docs/results/what-did-not-work.md#the-cpu-cache).
_STEPS_AT_ONCE = 2
# Even where nothing is evicted the order changes as time goes by.
_LOOK_AGAIN_S = 0.5
# So long prefills wait at a stretch. Three steps of decodes and the copies beside them take about as long.
_MOST_GATED_S = 0.1


class LookTimes:
    """Knows when to look at the GPU's next victims: a look walks through all of them, and most steps change few."""

    def __init__(self, queue: BlockQueue, clock: Callable[[], float]) -> None:
        self._queue = queue
        self._clock = clock
        self._begun_s = -_LOOK_AGAIN_S
        self._evicted = 0
        self._wanted = 0
        self.is_awaited = False
        """Whether blocks were freed since the last look."""
        self.has_more = False
        """The last look found more than a step may copy."""

    def want(self, victims: int) -> None:
        """Ask for so many victims more than usual."""
        self._wanted = max(self._wanted, victims)

    def is_due(self, margin: int, *, idle: bool) -> bool:
        """Tell whether so many blocks went, or so much time, that others of the next `margin` are victims now.

        While the engine is idle time evicts nothing. It looks once at what requests have left: with copies that outlast
        the time to the next look, and more victims than the CPU cache has room for, it would copy for ever.
        """
        if self._wanted or self.has_more:
            return True
        if self.is_awaited if idle else self._clock() - self._begun_s >= _LOOK_AGAIN_S:
            return True
        return self._queue.evictions["capacity"].blocks - self._evicted >= margin // 4

    def begin(self) -> int:
        """Note that a look begins. Return how many victims more than usual are asked for."""
        self._begun_s, self._evicted = self._clock(), self._queue.evictions["capacity"].blocks
        wanted, self._wanted = self._wanted, 0
        self.is_awaited = self.has_more = False
        return wanted


class PrefillGate:
    """Closed while the blocks that go next are not stored, but not for long.

    What a long request leaves at its end is thousands of blocks, none of them stored, and a prefill takes hundreds a
    step. A copy counts some steps after it began. Steps of decodes alone are short, and a block takes many times as
    long to compute as to copy.
    """

    def __init__(self, can_lose: Callable[[int], bool], clock: Callable[[], float]) -> None:
        """`can_lose` tells whether the next so many blocks are stored or not worth it, and has them stored if not."""
        self._can_lose = can_lose
        self._clock = clock
        self._closed_s: float | None = None

    def end_wait(self) -> None:
        """Note a step that no prefill waits for: the next one waits anew."""
        self._closed_s = None

    def is_open(self, blocks: int) -> bool:
        """Tell whether this step may take so many blocks."""
        if self._can_lose(blocks):
            self.end_wait()
            return True
        if self._closed_s is None:
            self._closed_s = self._clock()
        return self._clock() - self._closed_s >= _MOST_GATED_S


class Storing:
    """Copies the blocks that the GPU's cache will evict next, enough for the next few steps.

    Fewer are copied beside a step, those that go first: copies of one step end together, and the GPU takes blocks
    meanwhile.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        queue: BlockQueue,
        evictor: Evictor,
        usefulness: Usefulness,
        counts: TierCounts,
        *,
        finder: HitFinder,
        fetch_s: float,
        compute_s: float,
        observers: Observers,
        clock: Callable[[], float],
    ) -> None:
        """Make the CPU cache, empty, of `counts.total` blocks, whose victims `evictor` chooses.

        `queue` is that of the GPU's cache, into which `finder` looks. A block takes `fetch_s` to come back, and
        `compute_s` to compute.
        """
        pool = scheduler.kv_cache_manager.block_pool
        step = cdiv(scheduler.max_num_scheduled_tokens, scheduler.block_size)
        self._margin, self._most = _STEPS_AHEAD * step, _STEPS_AT_ONCE * step
        self._fetch_s = fetch_s
        self._compute_s = compute_s
        self.host = host = HostCache(
            counts.total,
            scheduler.hash_block_size,
            evictor,
            clock,
            is_useful=usefulness.is_useful,
            on_lost=self._note_lost_copies,
        )
        self.ledger = Ledger(len(pool.blocks), clock, host.map.holds, lambda block: block in self._finder.cache.copying)
        self._losses_guard = observers.guard("losses", self.ledger.ignore_host)
        self.counts = counts
        self.usefulness = usefulness
        self._finder = finder
        self._queue = queue
        self._clock = clock
        # By the block's id on the GPU.
        self._last_uses: list[LastUse] = [UNKNOWN_USE] * len(pool.blocks)
        # Blocks that were counted as avoided since they were freed.
        self._passed_over: set[int] = set()
        # Being copied. The GPU may have several blocks of one hash, of requests that computed the same side by side.
        self._under_way: set[BlockHashWithGroupId] = set()
        self.looks = LookTimes(queue, clock)
        self.gate = PrefillGate(self.can_lose, clock)

    def note_use(self, blocks: Sequence[KVCacheBlock], context: FreeContext) -> None:
        """Note who frees these blocks of the GPU now."""
        self.looks.is_awaited = True
        last_use = LastUse(context.without_pin(), self._clock())
        for block in blocks:
            self._last_uses[block.block_id] = last_use
        self._passed_over.difference_update(block.block_id for block in blocks)
        self._losses_guard.tell(self.ledger.note_use, blocks)

    def note_left(self, keys: Sequence[BlockHashWithGroupId], blocks: Sequence[KVCacheBlock]) -> None:
        """Note that what has these keys is worth nothing until it is used again: `blocks` of the GPU, and copies."""
        for block in blocks:
            self._last_uses[block.block_id] = LEFT
            # A copy that is being made is thrown away.
            self._finder.cache.copying.pop(block.block_id, None)
        self.host.give_up(keys)

    def note_taken(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Note that the GPU loses these blocks now: those that are stored are worth what their last use says.

        They need not have been among the victims of the last look: what a request frees may go at once.
        """
        holds = self.host.map.holds
        keyed = ((block.block_hash, self._last_uses[block.block_id]) for block in blocks)
        self.host.renew((key, last_use) for key, last_use in keyed if key is not None and holds(key))

    def _note_lost_copies(self, copies: Sequence[KVCacheBlock]) -> None:
        """Note that the CPU cache loses these: the GPU's own are dear again."""
        lost = {key: copy for copy in copies if (key := copy.block_hash) is not None}
        on_gpu = list(filter(self._finder.cache.holds, lost))
        blocks = self._finder.cache.find_blocks(on_gpu)
        self._losses_guard.tell(self.ledger.note_copies_lost, lost, blocks)
        gone = (lost[key] for key in lost.keys() - on_gpu)
        self.usefulness.note_lost(self.host.last_use_of(copy).context.finish_class for copy in gone)
        self._queue.reprice([block for block in blocks if not self._is_left(block)], self._compute_s)

    def inherit(self, blocks: Sequence[KVCacheBlock], last_uses: Iterable[LastUse]) -> None:
        """Note that these blocks of the GPU have come back from the CPU cache."""
        for block, last_use in zip(blocks, last_uses, strict=True):
            self._last_uses[block.block_id] = last_use

    def can_lose(self, count: int) -> bool:
        """Tell whether the next `count` victims are stored, or not worth it; else they are copied beside this step."""
        holds = self.host.map.holds
        for block in self._queue.list_victims(count):
            key = block.block_hash
            if key is not None and not holds(key) and self._is_useful(block):
                self.looks.want(count)
                return False
        return True

    def begin(self, *, idle: bool) -> Store | None:
        """Choose what to copy beside the step that was scheduled last; None if nothing is to be copied.

        `idle`: the step has no tokens. Then everything is copied that is to be, so that the engine can rest.
        """
        if not self.looks.is_due(self._margin, idle=idle):
            return None
        chosen = self._choose(None if idle else self._most).items()
        targets = self.host.reserve(len(chosen))
        blocks = [block for _, block in chosen]
        roomless = [block.block_id for block in blocks[len(targets) :]]
        self._losses_guard.tell(self.ledger.note_not_copied, roomless, "no room")
        del blocks[len(targets) :]
        if not blocks:
            return None
        copies = [
            StoredBlock(target, key, block.block_hash_num_tokens or 0, self._last_uses[block.block_id])
            for target, (key, block) in zip(targets, chosen, strict=False)
        ]
        store = Store(blocks, copies)
        # A block may be read by two copies at once, of which the first is of what it held before.
        self._finder.cache.copying.update((block.block_id, store) for block in blocks)
        self._under_way.update(copy.key for copy in copies)
        self._queue.reprice(blocks, _COPYING_S)
        return store

    def end(self, store: Store) -> None:
        """Take over what the copies have brought, but for blocks that were written over meanwhile."""
        intact = self._take_intact(store)
        if store.abandoned:
            intact = []
        ids = {block.block_id for block in intact}
        made = [block.block_id in ids for block in store.blocks]
        self.host.give_back([copy.block for copy, is_made in zip(store.copies, made, strict=True) if not is_made])
        self.host.put(list(compress(store.copies, made)))
        self._queue.reprice(intact, self._fetch_s)
        self.counts.stored += len(intact)
        self.counts.overwritten += len(store.blocks) - len(intact)

    def fail(self, store: Store) -> None:
        """Forget copies that failed: the GPU's own blocks are the only ones, and may be chosen again."""
        intact = self._take_intact(store)
        self.host.give_back([copy.block for copy in store.copies])
        self._queue.reprice(intact, self._compute_s)
        self._losses_guard.tell(self.ledger.note_not_copied, [block.block_id for block in intact], "overwritten")
        self.counts.failed_stores += len(store.blocks)

    def _take_intact(self, store: Store) -> list[KVCacheBlock]:
        """Note that copies are over, and find the blocks that were not written over meanwhile."""
        copying = self._finder.cache.copying
        self._under_way.difference_update(copy.key for copy in store.copies)
        intact = [block for block in store.blocks if copying.get(block.block_id) is store]
        for block in intact:
            del copying[block.block_id]
        return intact

    def _is_left(self, block: KVCacheBlock) -> bool:
        return self._last_uses[block.block_id] is LEFT

    def _is_useful(self, block: KVCacheBlock) -> bool:
        last_use = self._last_uses[block.block_id]
        return last_use is not LEFT and self.usefulness.is_useful(last_use.context.finish_class)

    def _choose(self, most: int | None) -> dict[BlockHashWithGroupId, KVCacheBlock]:
        """Choose up to `most` of the next victims, None: all that are worth a copy."""
        holds = self.host.map.holds
        chosen: dict[BlockHashWithGroupId, KVCacheBlock] = {}
        useless, safe, kept = set(), [], []
        for block in self._queue.list_victims(self._margin + self.looks.begin()):
            key = block.block_hash
            if key is None or key in self._under_way or key in chosen or self._is_left(block):
                continue
            last_use = self._last_uses[block.block_id]
            if holds(key):
                kept.append((key, last_use))
                safe.append(block)
            elif not self._is_useful(block):
                useless.add(block.block_id)
            elif len(chosen) == most:
                self.looks.has_more = True
            else:
                chosen[key] = block
        self.host.renew(kept)
        self._queue.reprice(safe, self._fetch_s)
        self._losses_guard.tell(self.ledger.note_not_copied, useless, "not worth a copy")
        avoided = useless - self._passed_over
        self.counts.avoided += len(avoided)
        self.usefulness.note_avoided(len(avoided))
        self._passed_over |= avoided
        return chosen
