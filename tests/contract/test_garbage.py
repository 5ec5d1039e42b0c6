"""Python's garbage collector in an engine core: records that stay are looked at once in ten minutes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
from hand_clock import Clock

from agentcache.engine.vllm import garbage
from agentcache.engine.vllm.garbage import SpareSurvivors, spare_core


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """The collector as it was before, also for what the test has frozen."""
    callbacks, threshold = list(gc.callbacks), gc.get_threshold()
    yield
    gc.callbacks[:] = callbacks
    gc.set_threshold(*threshold)
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class Node:
    """One that refers to itself, so that a collection alone can free it."""

    def __init__(self) -> None:
        self.me: Node | None = self


def test_what_survives_a_full_collection_is_not_looked_at_again() -> None:
    SpareSurvivors(Clock()).begin()
    kept = [[number] for number in range(1000)]
    gc.collect(1)
    assert any(each is kept for each in gc.get_objects())
    gc.collect()
    assert not any(each is kept for each in gc.get_objects())


def test_garbage_among_what_was_spared_goes_ten_minutes_later() -> None:
    clock = Clock()
    SpareSurvivors(clock).begin()
    node = Node()
    gone = weakref.ref(node)
    gc.collect()
    del node
    gc.collect()
    assert gone() is not None
    clock.now_s += 600
    gc.collect()
    assert gone() is None


def test_few_objects_are_looked_at_at_a_time() -> None:
    SpareSurvivors(Clock()).begin()
    most = 0

    def count(phase: str, info: dict[str, int]) -> None:
        nonlocal most
        if phase == "start" and info["generation"] == 2:
            most = max(most, len(gc.get_objects()))

    gc.callbacks.append(count)
    kept = [[number] for number in range(300_000)]
    assert 1000 < most < 50_000
    assert len(kept) == 300_000


@pytest.mark.parametrize(("parent", "spares"), [(object(), 1), (None, 0)])
def test_an_engine_core_of_its_own_process_spares_survivors_once(
    monkeypatch: pytest.MonkeyPatch, parent: object, spares: int
) -> None:
    monkeypatch.setattr(garbage, "parent_process", lambda: parent)
    before = len(gc.callbacks)
    spare_core.cache_clear()
    spare_core()
    spare_core()
    spare_core.cache_clear()
    assert len(gc.callbacks) - before == spares
