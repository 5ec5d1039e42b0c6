"""Pinned evictors give up the same blocks as a slow reference, and without pins the same as the evictor inside."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from made_evictors import COST
from pinned_reference import INNER, NUM_BLOCKS, Inner, PinnedReference, pin_around
from return_time_reference import ReturnTimeReference
from sizes import pick_size

from agentcache._evictor import Evictor, FreeContext

PINS = st.integers(0, 2)


class SameVictims(RuleBasedStateMachine):
    @initialize(name=st.sampled_from(list(INNER)), cheapest_first=st.booleans())
    def start(self, name: str, cheapest_first: bool) -> None:
        bare = INNER[name](NUM_BLOCKS)
        inner: Inner = ReturnTimeReference(**COST) if name == "agentcache" else bare
        self.pinned = pin_around(INNER[name](NUM_BLOCKS), cheapest_first=cheapest_first)
        self.reference = PinnedReference(inner, cheapest_first=cheapest_first)
        self.taken = list(range(NUM_BLOCKS))
        self.pin: int | None = None
        self.now_s = 1e4

    @rule(seconds=st.sampled_from([1e-3, 0.3]) | st.floats(0.0, 60.0) | st.floats(0.0, 1e5))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: self.taken)
    @rule(
        data=st.data(), finish_class=st.integers(0, 2), factor=st.sampled_from([1.0, 1.0, 0.5]), job=st.integers(0, 3)
    )
    def add(self, data: st.DataObject, finish_class: int, factor: float, job: int) -> None:
        count = data.draw(st.integers(0, min(8, len(self.taken))))
        freed, self.taken = self.taken[:count], self.taken[count:]
        positions = [16 * n for n in data.draw(st.lists(st.integers(0, 2000), min_size=count, max_size=count))]
        if data.draw(st.booleans()):
            positions.sort(reverse=True)
        context = FreeContext(factor=factor, finish_class=finish_class, job=job, pin=self.pin)
        self.pinned.add(freed, positions, self.now_s, context)
        self.reference.add(freed, positions, self.now_s, context)

    @rule(count=st.integers(0, 3))
    def add_empty(self, count: int) -> None:
        freed, self.taken = self.taken[:count], self.taken[count:]
        self.pinned.add_empty(freed)
        self.reference.add_empty(freed)

    @rule(pin=st.none() | PINS)
    def pin_next(self, pin: int | None) -> None:
        self.pin = pin

    @rule(pin=PINS, value=st.sampled_from([0.0, 1.0]) | st.floats(0.0, 1e3))
    def set_value(self, pin: int, value: float) -> None:
        self.pinned.set_value(pin, value)
        self.reference.set_value(pin, value)

    @rule(pin=PINS)
    def release(self, pin: int) -> None:
        assert self.pinned.release(pin, self.now_s) == self.reference.release(pin, self.now_s)

    @rule(pin=PINS, count=st.integers(0, 6))
    def release_some(self, pin: int, count: int) -> None:
        assert self.pinned.release_some(pin, count, self.now_s) == self.reference.release_some(pin, count, self.now_s)

    @rule(pin=PINS, data=st.data())
    def reserve(self, pin: int, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(self.taken), max_size=6)) if self.taken else []
        self.pinned.reserve(pin, ids)
        self.reference.reserve(pin, ids)

    @rule(pin=PINS, data=st.data())
    def adopt(self, pin: int, data: st.DataObject) -> None:
        known = [*self.reference.order(self.now_s), *self.taken[:1], -1, NUM_BLOCKS]
        ids = data.draw(st.lists(st.sampled_from(known), max_size=12))
        assert self.pinned.adopt(pin, ids, self.now_s) == self.reference.adopt(pin, ids, self.now_s)

    @rule(count=st.integers(1, 4), data=st.data())
    def remove(self, count: int, data: st.DataObject) -> None:
        for _ in range(min(count, len(self.pinned))):
            block_id = data.draw(st.sampled_from(self.reference.order(self.now_s)))
            self.pinned.remove(block_id)
            self.reference.remove(block_id)
            self.taken.append(block_id)

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.pinned)))
        victims = self.pinned.evict(count, self.now_s)
        assert victims == self.reference.evict(count, self.now_s)
        self.taken += victims

    @rule()
    def start_anew(self) -> None:
        """Blocks of every class and many ages show what was learnt so far."""
        self.pin_next(None)
        for pin in range(3):
            self.release(pin)
        assert self.pinned.evict(len(self.pinned), self.now_s) == self.reference.evict(NUM_BLOCKS, self.now_s)
        for block_id in range(NUM_BLOCKS):
            freed_s = self.now_s - 2.0 ** (block_id // 3 * 2 - 2)
            self.pinned.add([block_id], [16], freed_s, FreeContext(finish_class=block_id % 3))
            self.reference.add([block_id], [16], freed_s, FreeContext(finish_class=block_id % 3))
        self.taken.clear()
        for seconds in (1.0, 10.0, 100.0, 1000.0):
            self.now_s += seconds
            assert list(self.pinned.order(self.now_s)) == self.reference.order(self.now_s)

    @rule()
    def take_losses(self) -> None:
        assert list(self.pinned.take_losses().items()) == sorted(self.reference.losses.items())
        self.reference.losses.clear()

    @invariant()
    def list_the_same(self) -> None:
        assert list(self.pinned.order(self.now_s)) == self.reference.order(self.now_s)
        sizes = [len(self.reference.of(pin)) for pin in range(3)]
        assert [self.pinned.size_of(pin) for pin in range(3)] == sizes
        assert self.pinned.pinned == sum(sizes)
        assert self.pinned.adopted == self.reference.adopted
        assert [self.pinned.reserved_by(pin) for pin in range(3)] == [
            self.reference.reserved_by(pin) for pin in range(3)
        ]
        self.pinned.check_integrity()


def test_pinned_takes_the_same_victims_as_the_reference() -> None:
    run_state_machine_as_test(
        SameVictims, settings=settings(max_examples=pick_size(40, 150), stateful_step_count=30, deadline=None)
    )


@pytest.mark.parametrize("make_inner", INNER.values(), ids=INNER)
def test_without_pins_the_victims_are_those_of_the_inner_evictor(make_inner: Callable[[int], Evictor]) -> None:
    for seed in range(20):
        chance = random.Random(seed)
        bare, pinned = make_inner(NUM_BLOCKS), pin_around(make_inner(NUM_BLOCKS))
        taken, now_s = list(range(NUM_BLOCKS)), 0.0
        for _ in range(60):
            now_s += chance.expovariate(0.1)
            freed = [taken.pop() for _ in range(chance.randint(0, min(6, len(taken))))]
            positions = [16 * chance.randint(0, 4000) for _ in freed]
            finish_class = chance.randint(0, 2)
            for evictor in (bare, pinned):
                evictor.add(freed, positions, now_s, FreeContext(finish_class=finish_class))
            for _ in range(chance.randint(0, min(3, len(bare)))):
                taken.append(chance.choice(list(bare.order(now_s))))
                bare.remove(taken[-1])
                pinned.remove(taken[-1])
            count = chance.randint(0, len(bare) // 2)
            victims = bare.evict(count, now_s)
            assert pinned.evict(count, now_s) == victims
            taken += victims
