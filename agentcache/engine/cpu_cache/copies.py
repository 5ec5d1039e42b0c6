"""The copies under way between both caches, by their numbers, and whether the link has room for more."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from agentcache.engine.cpu_cache.fetching import Fetch
from agentcache.engine.cpu_cache.storing import Store
from agentcache.engine.vllm.connector import CopiesDone
from agentcache.engine.vllm.copiers import CopyOrders


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
        whole = [number for number in done.ended if reported.ended[number] == self._workers]
        ended = {number: reported.take(number) for number in whole}
        return (
            [(self.stores.pop(number), seconds) for number, seconds in ended.items() if number in self.stores],
            [(self._fetches.pop(number), seconds) for number, seconds in ended.items() if number in self._fetches],
        )
