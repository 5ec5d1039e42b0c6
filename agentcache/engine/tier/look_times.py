"""When the GPU's next victims are looked at again: a look walks through all of them, and most steps change few."""

from __future__ import annotations

from collections.abc import Callable

from agentcache.engine.blocks.block_queue import BlockQueue

# Even where nothing is evicted the order changes as time goes by.
_LOOK_AGAIN_S = 0.5


class LookTimes:
    """Knows when others are near their eviction than at the last look, or more are asked for than that looked at."""

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
