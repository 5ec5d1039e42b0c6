"""When the GPU's next victims are looked at again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hand_clock import Clock

from agentcache.engine.cpu_cache.storing import LookTimes

MARGIN = 40


class Looking:
    """Looks at a queue that evicts by hand."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.evicted = SimpleNamespace(blocks=0)
        queue: Any = SimpleNamespace(evictions={"capacity": self.evicted})
        self.looks = LookTimes(queue, self.clock)
        assert self.is_due, "the first look"
        self.looks.begin()

    @property
    def is_due(self) -> bool:
        return self.looks.is_due(MARGIN, idle=False)


@pytest.fixture
def looking() -> Looking:
    return Looking()


def test_a_look_is_due_after_a_while_or_many_evictions(looking: Looking) -> None:
    looking.clock.now_s += 0.4
    looking.evicted.blocks += 9
    assert not looking.is_due
    looking.evicted.blocks += 1
    assert looking.is_due
    looking.looks.begin()
    looking.clock.now_s += 0.4
    assert not looking.is_due
    looking.clock.now_s += 0.2
    assert looking.is_due


def test_an_idle_engine_looks_once_at_what_was_left(looking: Looking) -> None:
    looking.clock.now_s += 100.0
    assert not looking.looks.is_due(MARGIN, idle=True)
    looking.looks.is_awaited = True
    assert looking.looks.is_due(MARGIN, idle=True)
    looking.looks.begin()
    assert not looking.looks.is_due(MARGIN, idle=True)


def test_a_look_goes_on_where_the_last_one_found_more(looking: Looking) -> None:
    looking.looks.has_more = True
    assert looking.is_due
    assert looking.looks.begin() == 0
    assert not looking.is_due


def test_the_most_that_was_asked_for_is_looked_at_once(looking: Looking) -> None:
    looking.looks.want(5)
    looking.looks.want(3)
    assert looking.is_due
    assert looking.looks.begin() == 5
    assert not looking.is_due
    assert looking.looks.begin() == 0
