# ruff: noqa: ARG002 (a policy may not need all that it is told)
from __future__ import annotations

from collections.abc import Sequence

from agentcache._evictor import UNKNOWN_REQUEST, FreeContext, PythonEvictor
from agentcache.errors import IntegrityError


class PythonLru(PythonEvictor):
    """LRU as a policy written in Python would be."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[int] = []

    def add(
        self,
        block_ids: Sequence[int],
        positions: Sequence[int],
        now_s: float,
        context: FreeContext = UNKNOWN_REQUEST,
    ) -> None:
        self.ids += block_ids

    def add_empty(self, block_ids: Sequence[int]) -> None:
        self.ids[:0] = block_ids

    def evict(self, count: int, now_s: float) -> list[int]:
        if count > len(self.ids):
            raise ValueError(f"cannot evict {count} blocks: {len(self.ids)} are free")
        victims, self.ids = self.ids[:count], self.ids[count:]
        return victims

    def remove(self, block_id: int) -> None:
        if block_id not in self.ids:
            raise KeyError(block_id)
        self.ids.remove(block_id)

    def order(self, now_s: float) -> list[int]:
        return self.ids.copy()

    def __len__(self) -> int:
        return len(self.ids)

    def check_integrity(self) -> None:
        if any(block_id < 0 for block_id in self.ids):
            raise IntegrityError("a negative block id")
