from __future__ import annotations

from collections.abc import Callable

import pytest
from evictor_conformance import EvictorConformance, LruConformance
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from agentcache.errors import IntegrityError
from agentcache.policy.evictor import Evictor
from agentcache.policy.lru import LruEvictor
from agentcache.policy.registry import POLICIES

EVICTORS = {policy.name: policy.make_evictor for policy in POLICIES.values() if policy.make_evictor is not None}
SETTINGS = settings(max_examples=100, stateful_step_count=30, deadline=None)

each_evictor = pytest.mark.parametrize("make_evictor", EVICTORS.values(), ids=EVICTORS)


@each_evictor
def test_evictor_keeps_the_contract(make_evictor: Callable[[], Evictor]) -> None:
    # A factory will do for Hypothesis, though its annotation asks for a class.
    run_state_machine_as_test(lambda: EvictorConformance(make_evictor), settings=SETTINGS)  # type: ignore[arg-type]


@each_evictor
def test_earlier_ids_go_first_where_nothing_else_is_known(make_evictor: Callable[[], Evictor]) -> None:
    evictor = make_evictor()
    evictor.add([5, 0, 9, 3])
    assert evictor.evict(4) == [5, 0, 9, 3]


@each_evictor
def test_policy_makes_a_new_evictor_each_time(make_evictor: Callable[[], Evictor]) -> None:
    make_evictor().add([1])
    assert len(make_evictor()) == 0


def test_lru_evicts_exactly_the_least_recently_freed() -> None:
    run_state_machine_as_test(LruConformance, settings=SETTINGS)


def test_lru_finds_an_id_that_no_block_has() -> None:
    evictor = LruEvictor()
    evictor.add([0, -1])
    with pytest.raises(IntegrityError, match="negative block id"):
        evictor.check_integrity()
