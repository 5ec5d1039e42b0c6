"""What the evictors written in C++ (`csrc/`) have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

from agentcache import _evictor
from agentcache.policy.evictor import Evictor


class CompiledEvictor(Evictor):
    """Hands every call on. Blocks have the ids from 0 to `num_blocks` - 1; wrong arguments raise ValueError.

    Calls on one evictor must not overlap: evictors that scan release the GIL while they do. The block queue calls
    `compiled` itself, past these methods: to change one, derive from Evictor.
    """

    def __init__(self, compiled: _evictor.Evictor) -> None:
        self.compiled = compiled

    @final
    def add(self, block_ids: Sequence[int], positions: Sequence[int], now_s: float, factor: float = 1.0) -> None:
        self.compiled.add_n(block_ids, positions, now_s, factor)

    @final
    def add_empty(self, block_ids: Sequence[int]) -> None:
        self.compiled.add_empty_n(block_ids)

    @final
    def evict(self, count: int, now_s: float) -> list[int]:
        return self.compiled.evict_n(count, now_s)

    @final
    def remove(self, block_id: int) -> None:
        self.compiled.remove(block_id)

    @final
    def order(self, now_s: float) -> Iterator[int]:
        return iter(self.compiled.order(now_s))

    @final
    def __len__(self) -> int:
        return len(self.compiled)

    @final
    def check_integrity(self) -> None:
        self.compiled.check_integrity()


def compile_evictor(evictor: Evictor) -> _evictor.Evictor:
    """The evictor as C++ code calls it, be it written in C++ or in Python."""
    return evictor.compiled if isinstance(evictor, CompiledEvictor) else _evictor.PythonEvictor(evictor)
