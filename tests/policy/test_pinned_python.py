"""Evictors written in Python, under pins: they are told what compiled ones are told, and evict the same."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from made_evictors import COST
from pinned_reference import INNER, NUM_BLOCKS, pin_around
from return_time_reference import ReturnTimeReference
from sizes import pick_size

from agentcache._evictor import UNKNOWN_REQUEST, FreeContext, PinnedEvictor, PythonEvictor


class PythonReturnTime(PythonEvictor):
    """The slow reference behind the contract, with all that it is told of blocks that are kept elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.reference = ReturnTimeReference(**COST)
        self.empty: list[int] = []
        self.told: list[tuple[object, ...]] = []

    def add(
        self,
        block_ids: Sequence[int],
        positions: Sequence[int],
        now_s: float,
        context: FreeContext = UNKNOWN_REQUEST,
    ) -> None:
        self.reference.add(block_ids, positions, now_s, context)

    def add_empty(self, block_ids: Sequence[int]) -> None:
        self.empty[:0] = block_ids

    def evict(self, count: int, now_s: float) -> list[int]:
        victims, self.empty = self.empty[:count], self.empty[count:]
        return victims + self.reference.evict(count - len(victims), now_s)

    def remove(self, block_id: int) -> None:
        if block_id in self.empty:
            self.empty.remove(block_id)
        else:
            self.reference.remove(block_id)

    def order(self, now_s: float) -> list[int]:
        return [*self.empty, *self.reference.order(now_s)]

    def __len__(self) -> int:
        return len(self.order(0.0))

    def forget(self, block_id: int) -> None:
        self.told.append(("forget", block_id))
        self.reference.forget(block_id)

    def check_integrity(self) -> None:
        """Nothing is kept twice."""


def test_what_is_gone_from_a_pin_is_told_to_the_inner_one() -> None:
    inner = PythonReturnTime()
    evictor = pin_around(inner, num_blocks=4)
    evictor.add([0, 1], [32, 16], 10.0, FreeContext(finish_class=2, pin=5))
    evictor.remove(0)
    assert evictor.evict(1, 14.0) == [1]
    evictor.add_empty([0])
    evictor.forget(3)
    assert inner.told == [("forget", 1), ("forget", 0), ("forget", 3)]


def test_what_a_python_evictor_must_define_is_named() -> None:
    class Half(PythonEvictor):
        def __len__(self) -> int:
            return 0

    with pytest.raises(NotImplementedError, match="must define add_empty"):
        pin_around(Half())  # type: ignore[abstract]


def live(evictor: PinnedEvictor, chance: random.Random) -> list[list[int]]:
    """Groups of three classes and jobs, half of them pinned: all victims, and the order at the end."""
    taken, now_s, seen = list(range(NUM_BLOCKS)), 0.0, []
    for turn in range(300):
        now_s += chance.expovariate(0.1)
        freed = [taken.pop() for _ in range(chance.randint(0, min(6, len(taken))))]
        context = FreeContext(
            finish_class=turn % 3, job=chance.randint(0, 3), pin=turn % 4 if chance.random() < 0.5 else None
        )
        evictor.add(freed, [16 * chance.randint(0, 4000) for _ in freed], now_s, context)
        for _ in range(chance.randint(0, min(3, len(evictor)))):
            taken.append(chance.choice(list(evictor.order(now_s))))
            evictor.remove(taken[-1])
        if chance.random() < 0.2:
            evictor.release(chance.randint(0, 3), now_s)
        seen.append(evictor.evict(chance.randint(0, len(evictor) // 2), now_s))
        taken += seen[-1]
    return [*seen, list(evictor.order(now_s + 10.0))]


@pytest.mark.parametrize("seed", range(pick_size(2, 5)))
def test_a_python_evictor_under_pins_evicts_as_a_compiled_one(seed: int) -> None:
    compiled = live(pin_around(INNER["agentcache"](NUM_BLOCKS)), random.Random(seed))
    assert live(pin_around(PythonReturnTime()), random.Random(seed)) == compiled
