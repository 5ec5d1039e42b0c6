"""What every evictor must do: random calls, checked against plain lists."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agentcache._evictor import Evictor, FreeContext, LruEvictor

NUM_BLOCKS = 12


class EvictorConformance(RuleBasedStateMachine):
    """The part that no policy may change: which blocks are free, empty ones first, errors without effect."""

    def __init__(self, make_evictor: Callable[[], Evictor]) -> None:
        super().__init__()
        self.evictor = make_evictor()
        self.now_s = 0.0
        # Next victim first; the blocks with KV in the order in which they were added.
        self.empty: list[int] = []
        self.with_kv: list[int] = []

    @property
    def free(self) -> list[int]:
        return self.empty + self.with_kv

    @property
    def order(self) -> list[int]:
        return list(self.evictor.order(self.now_s))

    @rule(seconds=st.floats(0.0, 1e6))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(data=st.data(), factor=st.floats(0.1, 10.0))
    def add(self, data: st.DataObject, factor: float) -> None:
        block_ids = self._draw_used(data)
        positions = [16 * data.draw(st.integers(0, 10_000)) for _ in block_ids]
        self.with_kv += block_ids
        self.evictor.add(block_ids, positions, self.now_s, FreeContext(factor=factor))
        block_ids.clear()  # The lists stay the caller's.
        positions.clear()

    @rule(data=st.data())
    def add_empty(self, data: st.DataObject) -> None:
        block_ids = self._draw_used(data)
        self.empty[:0] = block_ids
        self.evictor.add_empty(block_ids)
        block_ids.clear()

    @rule(count=st.integers(0, NUM_BLOCKS + 2))
    def evict(self, count: int) -> None:
        order = self.order
        if count > len(order):
            with pytest.raises(ValueError, match=str(count)):
                self.evictor.evict(count, self.now_s)
            assert self.order == order
            return
        assert self.evictor.evict(count, self.now_s) == order[:count]
        assert self.order == order[count:]
        for block_id in order[:count]:
            (self.empty if block_id in self.empty else self.with_kv).remove(block_id)

    # Two ids more than there are blocks: never seen is no more free than taken.
    @rule(block_id=st.integers(0, NUM_BLOCKS + 1))
    def remove(self, block_id: int) -> None:
        order = self.order
        if block_id not in order:
            with pytest.raises(KeyError):
                self.evictor.remove(block_id)
            assert self.order == order
            return
        self.evictor.remove(block_id)
        assert self.order == [other for other in order if other != block_id]
        (self.empty if block_id in self.empty else self.with_kv).remove(block_id)

    @invariant()
    def knows_the_free_blocks(self) -> None:
        order = self.order
        assert sorted(order) == sorted(self.free)
        assert order[: len(self.empty)] == self.empty
        assert len(self.evictor) == len(order)
        self.evictor.check_integrity()

    @invariant()
    def knows_the_next_victims(self) -> None:
        order = self.order
        for count in (0, 1, len(order) // 2, len(order), len(order) + 3):
            assert self.evictor.first(count, self.now_s) == order[:count]

    def _draw_used(self, data: st.DataObject) -> list[int]:
        used = sorted(set(range(NUM_BLOCKS)) - set(self.free))
        return data.draw(st.lists(st.sampled_from(used), unique=True)) if used else []


class LruConformance(EvictorConformance):
    """LRU in addition: the order is known to the last block."""

    def __init__(self, make_evictor: Callable[[], Evictor] = LruEvictor) -> None:
        super().__init__(make_evictor)

    @invariant()
    def takes_the_least_recently_freed_first(self) -> None:
        assert self.order == self.free
