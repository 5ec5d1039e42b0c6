"""What csrc/pins/pinned.hpp does, with plain lists, and the evictors that it is tried around."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from made_evictors import COST, FREQUENCY, make_waits
from return_time_reference import ReturnTimeReference

from agentcache._evictor import AsymCacheEvictor, Evictor, FreeContext, LruEvictor, PinnedEvictor, ReturnTimeEvictor

NUM_BLOCKS = 24

INNER: dict[str, Callable[[int], Evictor]] = {
    "lru": lambda _: LruEvictor(),
    "asymcache": lambda blocks: AsymCacheEvictor(num_blocks=blocks, **FREQUENCY, **COST),
    "agentcache": lambda blocks: ReturnTimeEvictor(num_blocks=blocks, **COST, waits=make_waits()),
}


def pin_around(inner: Evictor, *, num_blocks: int = NUM_BLOCKS, cheapest_first: bool = False) -> PinnedEvictor:
    return PinnedEvictor(inner, num_blocks=num_blocks, cheapest_first=cheapest_first)


# Factor, class and job.
class Inner(Protocol):
    """What the reference pins around: a compiled evictor without pins, or another reference."""

    def add(
        self,
        block_ids: Sequence[int],
        positions: Sequence[int],
        now_s: float,
        context: FreeContext,
    ) -> None: ...
    def evict(self, count: int, now_s: float) -> list[int]: ...
    def remove(self, block_id: int) -> None: ...
    def order(self, now_s: float) -> Any: ...


@dataclass
class Block:
    """One with KV that is free, in a pin or in the inner evictor."""

    position: int
    context: FreeContext
    pin: int | None = None
    # For pinned ones: since when, which in the order of pinning, the number of their group and its first size.
    since_s: float = 0.0
    sequence: int = 0
    group: int = 0
    is_adopted: bool = False


class PinnedReference:
    """One record a block, and everything looked for from end to end."""

    def __init__(self, inner: Inner, *, cheapest_first: bool) -> None:
        self._inner = inner
        self._cheapest_first = cheapest_first
        self._empty: list[int] = []
        self._blocks: dict[int, Block] = {}
        self._values: dict[int, float] = {}
        # Of each block, in the order in which they reserved it.
        self._reservations: dict[int, list[int]] = {}
        self._added = 0
        self._groups = 0
        self.losses: dict[int, int] = {}

    def add(
        self,
        ids: Sequence[int],
        positions: Sequence[int],
        now_s: float,
        context: FreeContext,
    ) -> None:
        pin, unpinned = context.pin, context.without_pin()
        self._blocks |= {each: Block(n, unpinned) for each, n in zip(ids, positions, strict=True)}
        for each in ids:
            if not self._blocks[each].position:
                self._reservations.pop(each, None)
        pinned = [each for each in ids if pin is not None and self._blocks[each].position > 0]
        self._give_back([each for each in ids if each not in pinned], now_s, unpinned)
        if pin is not None:
            self.reserve(pin, pinned)
            self._pin(pin, pinned, now_s)

    def reserve(self, pin: int, ids: Sequence[int]) -> None:
        for each in ids:
            pins = self._reservations.setdefault(each, [])
            if pin not in pins:
                pins.append(pin)

    @property
    def adopted(self) -> int:
        return sum(block.is_adopted for block in self._blocks.values() if block.pin is not None)

    def reserved_by(self, pin: int) -> int:
        return sum(pin in pins for pins in self._reservations.values())

    def add_empty(self, ids: Sequence[int]) -> None:
        self._empty[:0] = ids
        for each in ids:
            self._reservations.pop(each, None)
            self._forget(each)

    def set_value(self, pin: int, value: float) -> None:
        self._values[pin] = value

    def release(self, pin: int, now_s: float) -> int:
        self._inner.evict(0, now_s)
        self._values.pop(pin, None)
        for each in list(self._reservations):
            self._drop_reservation(pin, each)
        released = self.of(pin)
        for group in sorted({block.group for block in released.values()}):
            of_group = {each: block for each, block in released.items() if block.group == group}
            ids = sorted(of_group, key=lambda each: of_group[each].sequence)
            first = of_group[ids[0]]
            since_s = first.since_s
            for block in of_group.values():
                block.pin = None
            self._give_back(ids, since_s, self._blocks[ids[0]].context)
        return len(released)

    def release_some(self, pin: int, count: int, now_s: float) -> int:
        self._inner.evict(0, now_s)
        ids = [each for each in self._by_loss() if self._blocks[each].pin == pin][:count]
        for _, run in itertools.groupby(ids, key=lambda each: self._blocks[each].group):
            alike = list(run)
            first = self._blocks[alike[0]]
            since_s = first.since_s
            for each in alike:
                self._blocks[each].pin = None
                self._drop_reservation(pin, each)
            self._give_back(alike, since_s, self._blocks[alike[0]].context)
        return len(ids)

    def adopt(self, pin: int, ids: Sequence[int], now_s: float) -> int:
        adopted = [
            each
            for i, each in enumerate(ids)
            if each in self._blocks
            and self._blocks[each].pin is None
            and self._blocks[each].position > 0
            and each not in ids[:i]
        ]
        for each in adopted:
            self._inner.remove(each)
        self._inner.evict(0, now_s)
        group: list[int] = []
        for each in adopted:
            if group and self._blocks[group[-1]].context != self._blocks[each].context:
                self._pin(pin, group, now_s, is_adopted=True)
                group = []
            group.append(each)
        self._pin(pin, group, now_s, is_adopted=True)
        return len(adopted)

    def remove(self, block_id: int) -> None:
        if block_id in self._empty:
            self._empty.remove(block_id)
            return
        block = self._blocks.pop(block_id)
        if block.pin is None:
            self._inner.remove(block_id)

    def evict(self, count: int, now_s: float) -> list[int]:
        victims, self._empty = self._empty[:count], self._empty[count:]
        in_inner = sum(block.pin is None for block in self._blocks.values())
        victims += self._inner.evict(min(count - len(victims), in_inner), now_s)
        for each in victims:
            self._blocks.pop(each, None)
        for each in self._by_loss()[: count - len(victims)]:
            block = self._blocks.pop(each)
            assert block.pin is not None
            for pin in {block.pin, *self._reservations.pop(each, [])}:
                self.losses[pin] = self.losses.get(pin, 0) + 1
            self._forget(each)
            victims.append(each)
        return victims

    def order(self, now_s: float) -> list[int]:
        return [*self._empty, *self._inner.order(now_s), *self._by_loss()]

    def of(self, pin: int) -> dict[int, Block]:
        return {each: block for each, block in self._blocks.items() if block.pin == pin}

    def _by_loss(self) -> list[int]:
        def key(block_id: int) -> tuple[float, int, int, int]:
            block = self._blocks[block_id]
            assert block.pin is not None
            position = block.position if self._cheapest_first else 0
            return self._values.get(block.pin, 0.0), block.pin, position, block.sequence

        return sorted((each for each, block in self._blocks.items() if block.pin is not None), key=key)

    def _give_back(self, ids: Sequence[int], now_s: float, context: FreeContext) -> None:
        """To a pin that has reserved it, else to the inner evictor."""
        others = [each for each in ids if each not in self._reservations]
        self._inner.add(others, [self._blocks[each].position for each in others], now_s, context)
        best = {
            each: max(self._reservations[each], key=lambda pin: self._values.get(pin, 0.0))
            for each in ids
            if each in self._reservations
        }
        for pin in sorted(set(best.values())):
            self._pin(pin, [each for each in ids if best.get(each) == pin], now_s)

    def _drop_reservation(self, pin: int, block_id: int) -> None:
        pins = self._reservations.get(block_id, [])
        if pin in pins:
            pins.remove(pin)
            if not pins:
                del self._reservations[block_id]

    def _pin(self, pin: int, ids: Sequence[int], now_s: float, *, is_adopted: bool = False) -> None:
        self._groups += 1
        for each in ids:
            block = self._blocks[each]
            block.pin, block.since_s, block.sequence = pin, now_s, self._added
            block.is_adopted, block.group = is_adopted, self._groups
            self._added += 1

    def _forget(self, block_id: int) -> None:
        if isinstance(self._inner, ReturnTimeReference):
            self._inner.forget(block_id)
