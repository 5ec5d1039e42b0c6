"""What the evictors written in C++ (`csrc/`) have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

from agentcache import _evictor
from agentcache._evictor import FreeContext
from agentcache.policy.evictor import UNKNOWN_REQUEST, Evictor


class CompiledEvictor(Evictor):
    """Hands every call on. Blocks have the ids from 0 to `num_blocks` - 1; wrong arguments raise ValueError.

    Calls on one evictor must not overlap, and could: those that scan release the GIL in `evict`, and all in `order`.
    The block queue calls `compiled` itself, past these methods: to change one, derive from Evictor.
    """

    def __init__(self, compiled: _evictor.Evictor) -> None:
        self.compiled = compiled

    @final
    def add(
        self,
        block_ids: Sequence[int],
        positions: Sequence[int],
        now_s: float,
        context: FreeContext = UNKNOWN_REQUEST,
    ) -> None:
        """Free blocks with reusable KV."""
        self.compiled.add(block_ids, positions, now_s, context)

    @final
    def add_empty(self, block_ids: Sequence[int]) -> None:
        """Free blocks without reusable KV."""
        self.compiled.add_empty(block_ids)

    @final
    def evict(self, count: int, now_s: float) -> list[int]:
        """Take out the `count` blocks to lose."""
        return self.compiled.evict(count, now_s)

    @final
    def remove(self, block_id: int) -> None:
        """Take out one block because its KV is used again."""
        self.compiled.remove(block_id)

    @final
    def settle(self, now_s: float) -> None:
        """Learn from the blocks removed so far."""
        self.compiled.settle(now_s)

    @final
    def observe_return(self, finish_class: int, age_s: float, share: float) -> None:
        """Learn that a part of a group of blocks came back."""
        self.compiled.observe_return(finish_class, age_s, share)

    @final
    def observe_eviction(self, finish_class: int, age_s: float, share: float) -> None:
        """Learn that a part of a group of blocks was evicted."""
        self.compiled.observe_eviction(finish_class, age_s, share)

    @final
    def reprice(self, block_ids: Sequence[int], cost_s: float) -> None:
        """Set what the loss of these blocks costs until they are freed anew."""
        self.compiled.reprice(block_ids, cost_s)

    @final
    def forget(self, block_id: int) -> None:
        """Forget what was in a block that is not free here."""
        self.compiled.forget(block_id)

    @final
    def order(self, now_s: float) -> Iterator[int]:
        """Iterate over the free blocks, the next victim first."""
        return iter(self.compiled.order(now_s))

    @final
    def first(self, count: int, now_s: float) -> list[int]:
        """List the `count` next victims."""
        return self.compiled.first(count, now_s)

    @final
    def __len__(self) -> int:
        """Return how many blocks are free."""
        return len(self.compiled)

    @final
    def check_integrity(self) -> None:
        """Raise IntegrityError when the records contradict themselves."""
        self.compiled.check_integrity()


def compile_evictor(evictor: Evictor) -> _evictor.Evictor:
    """Return the evictor as C++ code calls it, be it written in C++ or in Python."""
    return evictor.compiled if isinstance(evictor, CompiledEvictor) else _evictor.PythonEvictor(evictor)
