"""Which blocks of running requests may be copied."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from agentcache.engine.cpu_cache.store_choice import ComputedBlocks


class Running:
    """Requests by their id, with the tokens that were scheduled before this step; block `n` of a request is (id, n)."""

    def __init__(self) -> None:
        manager = SimpleNamespace(get_blocks=self._blocks_of)
        self.scheduler: Any = SimpleNamespace(running=[], block_size=16, kv_cache_manager=manager)
        self.computed = ComputedBlocks(self.scheduler)

    def step(self, **tokens: int) -> list[Any]:
        self.scheduler.running = [
            SimpleNamespace(request_id=name, num_computed_tokens=count) for name, count in tokens.items()
        ]
        return self.computed.take()

    def _blocks_of(self, name: str) -> Any:
        return SimpleNamespace(blocks=([(name, index) for index in range(100)],))


def test_each_full_block_comes_once() -> None:
    running = Running()
    running.step(a=0)
    assert running.step(a=40) == [("a", 0), ("a", 1)]
    assert running.step(a=47) == []
    assert running.step(a=48, b=0) == [("a", 2)]


def test_what_a_new_request_hits_waits_a_step() -> None:
    """It may be computed in the very step that admits the request."""
    running = Running()
    assert running.step(a=32) == []
    assert running.step(a=64) == [("a", 0), ("a", 1), ("a", 2), ("a", 3)]


def test_request_that_was_preempted_begins_anew() -> None:
    running = Running()
    running.step(a=0)
    running.step(a=32)
    running.step()
    assert running.step(a=32) == []
    assert running.step(a=32) == [("a", 0), ("a", 1)]
