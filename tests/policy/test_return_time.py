"""The return-time evictor against a slow reference, and what it makes of what it is told."""

from __future__ import annotations

from typing import Any

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
from made_evictors import COST, SAME_COST, make_waits
from return_time_reference import ReturnTimeReference
from sizes import pick_size

from agentcache._evictor import AGE_EDGES_S, FreeContext, ReturnTimeEvictor, ReturnWaits

YEAR_S = 365 * 24 * 3600.0
NUM_BLOCKS = 24


class SameVictims(RuleBasedStateMachine):
    """Both compute the same doubles in the same order, so that not even ties may differ."""

    @initialize(
        cost=st.sampled_from([COST, SAME_COST]),
        start_s=st.sampled_from([0.0, YEAR_S, 100 * YEAR_S]),
    )
    def start(self, cost: dict[str, Any], start_s: float) -> None:
        self.waits = make_waits()
        self.evictor = ReturnTimeEvictor(num_blocks=NUM_BLOCKS, **cost, waits=self.waits)
        self.reference = ReturnTimeReference(**cost)
        self.taken = list(range(NUM_BLOCKS))
        self.now_s = start_s

    @rule(finish_class=st.integers(0, 3), median_s=st.floats(0.01, 1e4), power=st.sampled_from([0.1, 1.0, 300.0]))
    def expect(self, finish_class: int, median_s: float, power: float) -> None:
        away = [(1 / (1 + edge_s / median_s)) ** power for edge_s in AGE_EDGES_S]
        self.waits.expect(finish_class, away)
        self.reference.expect(finish_class, away)

    @rule(seconds=st.sampled_from([1e-3, 0.3, -0.1]) | st.floats(0.0, 60.0) | st.floats(0.0, 1e8))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: self.taken)
    @rule(
        data=st.data(),
        finish_class=st.integers(0, 3),
        factor=st.sampled_from([1.0, 0.5]) | st.floats(1e-3, 1e3),
        job=st.integers(0, 4),
        whole=st.booleans(),
    )
    def add(self, *, data: st.DataObject, finish_class: int, factor: float, job: int, whole: bool) -> None:
        count = data.draw(st.integers(0, min(8, len(self.taken))))
        freed, self.taken = self.taken[:count], self.taken[count:]
        positions = [16 * n for n in data.draw(st.lists(st.integers(0, 8000), min_size=count, max_size=count))]
        context = FreeContext(factor=factor, finish_class=finish_class, job=job, whole=whole)
        self.evictor.add(freed, positions, self.now_s, context)
        self.reference.add(freed, positions, self.now_s, context)

    @rule(count=st.integers(1, 4), data=st.data())
    def remove(self, count: int, data: st.DataObject) -> None:
        for _ in range(min(count, len(self.evictor))):
            block_id = data.draw(st.sampled_from(list(self.reference.order(self.now_s))))
            self.evictor.remove(block_id)
            self.reference.remove(block_id)
            self.taken.append(block_id)

    @rule(data=st.data(), cost_s=st.sampled_from([1e-9, 4e-5, 1.0]))
    def reprice(self, data: st.DataObject, cost_s: float) -> None:
        block_ids = data.draw(st.lists(st.integers(-2, NUM_BLOCKS + 2), max_size=NUM_BLOCKS))
        self.evictor.reprice(block_ids, cost_s)
        self.reference.reprice(block_ids, cost_s)

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.evictor)))
        victims = self.evictor.evict(count, self.now_s)
        assert victims == self.reference.evict(count, self.now_s)
        self.taken += victims

    @invariant()
    def list_the_same(self) -> None:
        assert list(self.evictor.order(self.now_s)) == list(self.reference.order(self.now_s))
        self.evictor.check_integrity()


def test_return_time_takes_the_same_victims_as_the_reference() -> None:
    run_state_machine_as_test(
        SameVictims, settings=settings(max_examples=pick_size(30, 80), stateful_step_count=25, deadline=None)
    )


def make_evictor(num_blocks: int) -> ReturnTimeEvictor:
    return ReturnTimeEvictor(num_blocks=num_blocks, **COST, waits=make_waits())


def return_by(usual_s: float, *, share: float = 1.0) -> list[float]:
    """So many are back by then, all at about that time."""
    return [1.0 if edge_s < usual_s else 1.0 - share for edge_s in AGE_EDGES_S]


def taught(num_blocks: int) -> ReturnTimeEvictor:
    """Ends of class 1 come back after 10 s, those of class 2 hardly ever, and what many wait for after 2 s."""
    waits = make_waits()
    for finish_class, away in ((1, return_by(10.0)), (2, return_by(500.0, share=0.01)), (3, return_by(2.0))):
        waits.expect(finish_class, away)
    return ReturnTimeEvictor(num_blocks=num_blocks, **COST, waits=waits)


def test_the_cheapest_block_of_a_group_goes_first() -> None:
    evictor = make_evictor(4)
    evictor.add([3, 0, 2, 1], [64_000, 16, 48_000, 32_000], 0.0)
    assert evictor.evict(4, 1.0) == [0, 1, 2, 3]


def test_what_is_of_use_together_alone_goes_together() -> None:
    """Both chains are as dear; by age they would go block by block in turns, and neither would be of use."""
    evictor = ReturnTimeEvictor(num_blocks=7, **SAME_COST, waits=make_waits())
    whole = FreeContext(whole=True)
    evictor.add([0, 1, 2], [48, 32, 16], 0.0, whole)
    evictor.add([3, 4, 5], [48, 32, 16], 1.0, whole)
    assert evictor.evict(1, 2.0) == [0]
    # Worth less than either chain was, more than what is left of the first.
    evictor.add([6], [16], 2.0, FreeContext(factor=1e-6))
    assert list(evictor.order(1000.0)) == [1, 2, 6, 3, 4, 5]
    assert evictor.evict(6, 1000.0) == [1, 2, 6, 3, 4, 5]


def test_before_anything_is_learnt_the_longest_idle_goes_first() -> None:
    evictor = make_evictor(3)
    for block_id, freed_s in enumerate((0.0, 5.0, 9.0)):
        evictor.add([block_id], [16], freed_s)
    assert evictor.evict(3, 10.0) == [0, 1, 2]


def test_a_class_that_returns_stays_and_one_that_did_not_goes() -> None:
    evictor = taught(4)
    evictor.add([2], [16], 2e6, FreeContext(finish_class=1))
    evictor.add([3], [16], 2e6 + 5, FreeContext(finish_class=2))
    assert list(evictor.order(2e6 + 6)) == [3, 2], "the one that is longer idle is about to come back"


def test_past_its_usual_gap_a_group_is_worth_less_than_before_it() -> None:
    evictor = taught(4)
    evictor.add([2], [16], 2e6, FreeContext(finish_class=1))
    evictor.add([3], [16], 2e6 + 100, FreeContext(finish_class=1))
    assert list(evictor.order(2e6 + 108)) == [2, 3]


def test_blocks_that_are_used_again_move_to_the_newer_group() -> None:
    evictor = make_evictor(4)
    evictor.add([0, 1], [16, 32], 0.0)
    evictor.remove(0)
    evictor.add([0, 2], [16, 32], 100.0)
    assert evictor.evict(3, 101.0) == [1, 0, 2]


def test_a_year_of_uptime_or_a_clock_set_back_changes_no_order() -> None:
    for start_s in (0.0, YEAR_S, 100 * YEAR_S):
        evictor = make_evictor(4)
        evictor.add([0, 1], [16, 32], start_s)
        evictor.add([2, 3], [16, 32], start_s + 1.0)
        assert list(evictor.order(start_s - 5.0)) == [0, 2, 1, 3]
        assert evictor.evict(4, start_s + YEAR_S) == [0, 2, 1, 3]


def leave(evictor: ReturnTimeEvictor, ids: list[int], now_s: float, *, finish_class: int, job: int) -> None:
    evictor.add(ids, [16 * (block_id + 1) for block_id in ids], now_s, FreeContext(finish_class=finish_class, job=job))


def use(evictor: ReturnTimeEvictor, *ids: int) -> None:
    for block_id in ids:
        evictor.remove(block_id)


def test_a_shared_block_stays_with_the_one_job_that_still_waits() -> None:
    evictor = taught(6)
    leave(evictor, [2, 1, 0], 2e6, finish_class=1, job=7)
    use(evictor, 1, 0)
    leave(evictor, [4, 3, 1, 0], 2e6 + 2, finish_class=2, job=8)
    assert list(evictor.order(2e6 + 3)) == [3, 4, 0, 1, 2]


def test_jobs_beyond_32_bits_are_told_apart() -> None:
    first = 2**40
    evictor = taught(6)
    leave(evictor, [2, 1, 0], 2e6, finish_class=1, job=first)
    use(evictor, 1, 0)
    leave(evictor, [4, 3, 1, 0], 2e6 + 2, finish_class=2, job=first + 2**32)
    assert list(evictor.order(2e6 + 3)) == [3, 4, 0, 1, 2], "not taken for one job, which came back"
    assert FreeContext(job=2**63 - 1).job == 2**63 - 1
    with pytest.raises(TypeError):
        FreeContext(job=2**63)


def test_a_shared_block_goes_to_the_better_waiter_then_the_other() -> None:
    evictor = taught(6)
    leave(evictor, [2, 0], 2e6, finish_class=2, job=7)
    use(evictor, 0)
    leave(evictor, [3, 0], 2e6 + 2, finish_class=1, job=8)
    assert list(evictor.order(2e6 + 3)) == [2, 0, 3], "8 is about to come back"
    use(evictor, 3, 0)
    leave(evictor, [3, 0], 2e6 + 900, finish_class=2, job=8)
    assert list(evictor.order(2e6 + 901)) == [2, 0, 3]
    leave(evictor, [4], 2e6 + 902, finish_class=1, job=7)
    use(evictor, 0)
    leave(evictor, [5, 0], 2e6 + 903, finish_class=2, job=9)
    assert list(evictor.order(2e6 + 904))[-2:] == [4, 0], "7 and 8 are waited for by now"


def test_what_many_wait_for_is_of_a_class_of_its_own() -> None:
    """None of these ends tells of a return, and yet one of the jobs comes every second."""
    evictor = taught(24)
    now_s = 2e6
    for job in range(1, 20):
        leave(evictor, [job, 0], now_s, finish_class=2, job=job)
        now_s += 1
        use(evictor, 0)
    leave(evictor, [20, 0], now_s, finish_class=2, job=20)
    leave(evictor, [21], now_s, finish_class=1, job=21)
    assert list(evictor.order(now_s + 1))[-1] == 0, "it is worth more than what is wanted in 10 s"


def test_a_job_that_came_back_takes_its_blocks_with_it() -> None:
    evictor = taught(6)
    leave(evictor, [2, 1, 0], 2e6, finish_class=1, job=7)
    use(evictor, 1, 0)
    leave(evictor, [3, 1, 0], 2e6 + 2, finish_class=2, job=7)
    assert list(evictor.order(2e6 + 3)) == [0, 1, 3, 2], "what its last turn left alone waits on"


def test_what_is_in_a_block_anew_is_nobodys_else() -> None:
    evictor = taught(6)
    leave(evictor, [2, 0], 2e6, finish_class=1, job=7)
    use(evictor, 0)
    evictor.add_empty([0])
    assert evictor.evict(1, 2e6 + 1) == [0]
    leave(evictor, [3, 0], 2e6 + 2, finish_class=2, job=8)
    assert list(evictor.order(2e6 + 3)) == [0, 3, 2]


@pytest.mark.parametrize("finish_class", [-1, 1024])
def test_a_class_out_of_range_is_refused(finish_class: int) -> None:
    with pytest.raises(ValueError, match="finish_class"):
        make_evictor(2).add([0], [16], 0.0, FreeContext(finish_class=finish_class))


@pytest.mark.parametrize("least_wait_s", [0.0, float("inf")])
def test_a_least_wait_out_of_range_is_refused(least_wait_s: float) -> None:
    with pytest.raises(ValueError, match="least_wait_s"):
        ReturnWaits(least_wait_s=least_wait_s)


@pytest.mark.parametrize("away", [[], [1.0], [*return_by(9.0)[:-1], 1.0], [float("nan")] * len(AGE_EDGES_S)])
def test_shares_that_do_not_fall_from_1_are_refused(away: list[float]) -> None:
    with pytest.raises(ValueError, match="share"):
        make_waits().expect(1, away)


@pytest.mark.parametrize("block_id", [-1, 2])
def test_a_block_that_there_is_not_cannot_be_forgotten(block_id: int) -> None:
    with pytest.raises(ValueError, match="no such block"):
        make_evictor(2).forget(block_id)


@pytest.mark.parametrize("cost_s", [0.0, -1.0, float("inf"), float("nan")])
def test_blocks_cannot_cost_nothing(cost_s: float) -> None:
    evictor = ReturnTimeEvictor(num_blocks=4, **COST, waits=make_waits())
    evictor.add([0, 1], [16, 32], 0.0)
    with pytest.raises(ValueError, match="cost_s"):
        evictor.reprice([0], cost_s)
    assert evictor.first(4, 1.0) == [0, 1]


def test_what_can_be_had_back_goes_first_and_nothing_is_learnt() -> None:
    evictor = ReturnTimeEvictor(num_blocks=4, **SAME_COST, waits=make_waits())
    evictor.add([0, 1], [16, 32], 0.0)
    evictor.add([2, 3], [16, 32], 0.0)
    assert evictor.first(4, 1.0) == [0, 1, 2, 3]
    evictor.reprice([1, 3], 1e-12)
    assert evictor.first(4, 1.0) == [1, 3, 0, 2]
    # Freed anew they cost what they did.
    evictor.remove(3)
    evictor.add([3], [32], 0.0)
    assert evictor.first(4, 1.0)[0] == 1
    assert evictor.first(4, 1.0)[1] != 3
