"""Blocks that are freed after the end of the request that used them, and what the evictor is to know of them then."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from agentcache._evictor import FreeContext
from agentcache.engine.blocks.block_queue import BlockQueue
from agentcache.engine.vllm.types import BlockPool, KVCacheBlock


class Part(NamedTuple):
    """Blocks that a request leaves with one context, the first to lose first."""

    blocks: list[KVCacheBlock]
    context: FreeContext


class LateFrees:
    """Blocks are late for two reasons: a step that writes them is under way, or a KV connector still uses them.

    `queue` is the pool's. `renew` gives the context that holds by now.
    """

    def __init__(self, pool: BlockPool, queue: BlockQueue, renew: Callable[[FreeContext], FreeContext]) -> None:
        self._pool = pool
        self._queue = queue
        self._renew = renew
        # With the step that has to be over.
        self._deferred: deque[tuple[int, Part]] = deque()
        # By the request that is over.
        self._in_use: dict[str, list[Part]] = {}

    def keep(self, request_id: str, parts: list[Part]) -> None:
        """Keep what a request leaves that is over, until the connector is done with its blocks."""
        self._in_use[request_id] = parts

    def take(self, request_id: str) -> list[Part] | None:
        """Take what was kept of the request; None if nothing was."""
        return self._in_use.pop(request_id, None)

    def defer(self, part: Part, step: int) -> None:
        """Free a part when the step is over."""
        if part.blocks:
            self._deferred.append((step, part))

    def drain(self, processed_step: int) -> None:
        """Free what was deferred to this step or one before."""
        while self._deferred and self._deferred[0][0] <= processed_step:
            self.free(self._deferred.popleft()[1])

    def free(self, part: Part) -> None:
        """Free a part now."""
        with self._queue.free_with(self._renew(part.context)):
            self._pool.free_blocks(part.blocks)

    @property
    def deferred(self) -> int:
        """The number of blocks that wait for a step."""
        return sum(len(part.blocks) for _, part in self._deferred)

    def count_held(self, own: Mapping[str, list[KVCacheBlock]]) -> Counter[int]:
        """Count how often each block is held here, by its id. `own`: what requests have in vLLM's tables."""
        held = Counter(block.block_id for _, part in self._deferred for block in part.blocks)
        for request_id, parts in self._in_use.items():
            held += Counter(_ids(chain.from_iterable(part.blocks for part in parts))) - Counter(_ids(own[request_id]))
        return held


def _ids(blocks: Iterator[KVCacheBlock] | list[KVCacheBlock]) -> list[int]:
    return [block.block_id for block in blocks]
