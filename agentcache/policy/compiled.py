"""What the evictors written in C++ (`csrc/`) have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentcache import _evictor
from agentcache.policy.evictor import Evictor


class CompiledEvictor(Evictor):
    """Hands every call on. Blocks have the ids from 0 to `num_blocks` - 1; wrong arguments raise ValueError.

    Calls on one evictor must not overlap: evictors that scan release the GIL while they do.
    """

    def __init__(self, evictor: _evictor.Evictor) -> None:
        self._evictor = evictor
        # vLLM removes blocks one by one: a Python frame for each would be a quarter of the time.
        self.remove = evictor.remove  # type: ignore[method-assign]

    def add(self, block_ids: Sequence[int], positions: Sequence[int], now_s: float, factor: float = 1.0) -> None:
        self._evictor.add_n(block_ids, positions, now_s, factor)

    def add_empty(self, block_ids: Sequence[int]) -> None:
        self._evictor.add_empty_n(block_ids)

    def evict(self, count: int, now_s: float) -> list[int]:
        return self._evictor.evict_n(count, now_s)

    def remove(self, block_id: int) -> None:
        self._evictor.remove(block_id)

    def order(self, now_s: float) -> Iterator[int]:
        return iter(self._evictor.order(now_s))

    def __len__(self) -> int:
        return len(self._evictor)

    def check_integrity(self) -> None:
        self._evictor.check_integrity()
