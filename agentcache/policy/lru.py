"""Least recently used first: the same victims as vLLM's own free list, one by one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from agentcache.errors import IntegrityError
from agentcache.policy.evictor import Evictor


class LruEvictor(Evictor):
    """One ordered dictionary, next victim first. Every operation is O(1) per block."""

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def add(self, block_ids: Sequence[int], positions: Sequence[int], now_s: float, factor: float = 1.0) -> None:
        self._order.update(dict.fromkeys(block_ids))

    def add_empty(self, block_ids: Sequence[int]) -> None:
        for block_id in reversed(block_ids):
            self._order[block_id] = None
            self._order.move_to_end(block_id, last=False)

    def evict(self, count: int, now_s: float) -> list[int]:
        if count > len(self._order):
            raise ValueError(f"cannot evict {count} blocks: {len(self._order)} are free")
        return [self._order.popitem(last=False)[0] for _ in range(count)]

    def remove(self, block_id: int) -> None:
        del self._order[block_id]

    def order(self, now_s: float) -> Iterator[int]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def check_integrity(self) -> None:
        if any(block_id < 0 for block_id in self._order):
            raise IntegrityError("the LRU order holds a negative block id")
