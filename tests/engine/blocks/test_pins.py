"""Pins and guards over a real evictor: what each holds, how each ends, and that the counts agree."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest
from counted_names import CountedName
from hand_clock import Clock
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from agentcache._evictor import FreeContext, LruEvictor, PinnedEvictor
from agentcache.engine.blocks.pins import Pin, PinEnd, Pins, pin_rank
from agentcache.errors import IntegrityError
from tool_runtime.learning.job_table import MAX_PENDING
from tool_runtime.learning.ttl import RELEASE, Hold

NUM_BLOCKS = 64


def make(budget: int = NUM_BLOCKS) -> tuple[Pins, PinnedEvictor, Clock]:
    evictor = PinnedEvictor(LruEvictor(), num_blocks=NUM_BLOCKS, cheapest_first=True)
    clock = Clock()
    return Pins(evictor, budget_blocks=budget, clock=clock), evictor, clock


def hold(ttl_s: float = 10.0) -> Callable[[float], Hold]:
    """For so long, from the end of the turn on."""
    return lambda age_s: Hold(ttl_s - age_s, 1.0) if age_s < ttl_s else RELEASE


def used_blocks(ids: Iterable[int]) -> list[KVCacheBlock]:
    """Of a request that is about to free them."""
    return [KVCacheBlock(number, ref_cnt=1, _block_hash=b"hash") for number in ids]  # type: ignore[arg-type]


def pin(
    pins: Pins,
    evictor: PinnedEvictor,
    owner: str,
    blocks: range,
    *,
    rank: float = 1.0,
    decide: Callable[[float], Hold] | None = None,
) -> Pin | None:
    chosen = decide or hold()
    begun = pins.begin(
        owner,
        job=owner[0],
        tenant="",
        turn=0,
        blocks=used_blocks(blocks),
        decide=lambda age_s, _: chosen(age_s),
        rank=lambda _: rank,
    )
    free(evictor, blocks, Clock().now_s if begun is None else begun.began_s, pin=begun)
    pins.step()
    pins.check_integrity()
    return begun


def free(evictor: PinnedEvictor, blocks: range, now_s: float = 1000.0, *, pin: Pin | None = None) -> None:
    positions = [16 * (1 + number) for number in range(len(blocks))]
    evictor.add(list(blocks), positions, now_s, FreeContext(pin=pin.number if pin is not None else None))


def test_of_a_pin_beyond_the_budget_a_part_is_kept() -> None:
    pins, evictor, _ = make(budget=10)
    large = pin(pins, evictor, "large", range(16))
    assert large is not None
    assert (pins.blocks, pins.blocks_left(large), large.blocks, large.end) == (10, 10, 16, None)
    # The first in the prompt, cheapest to compute, have gone.
    assert evictor.evict(6, 1001.0) == [0, 1, 2, 3, 4, 5]
    assert pins.blocks == 10


def test_pins_of_least_worth_give_way_to_the_budget_last_in_part() -> None:
    """The pin worth least goes whole, and of the next as many blocks as the budget still lacks."""
    pins, evictor, _ = make(budget=20)
    poor, middling, rich = (
        pin(pins, evictor, owner, range(first, first + 8), rank=rank)
        for owner, first, rank in (("poor", 0, 1.0), ("middling", 8, 2.0), ("rich", 16, 3.0))
    )
    assert poor is not None
    assert middling is not None
    assert rich is not None
    assert (pins.blocks_left(poor), pins.blocks_left(middling), pins.blocks_left(rich)) == (4, 8, 8)
    richest = pin(pins, evictor, "richest", range(24, 31), rank=4.0)
    assert richest is not None
    assert (poor.end, middling.end, pins.blocks_left(middling)) == (PinEnd.BUDGET, None, 5)
    assert (pins.blocks, dict(pins.ended)) == (20, {"budget": 1})


def test_pins_are_ranked_anew_when_shares_change() -> None:
    pins, evictor, _ = make()
    one, other = pin(pins, evictor, "one", range(8), rank=1.0), pin(pins, evictor, "other", range(8, 16), rank=2.0)
    assert one is not None
    assert other is not None
    one.rank = lambda _: 3.0
    pins.rank_anew()
    evictor.evict(8, 1001.0)
    assert (pins.blocks_left(one), pins.blocks_left(other)) == (8, 0)


def test_without_a_budget_nothing_is_pinned() -> None:
    pins, evictor, _ = make(budget=0)
    assert pin(pins, evictor, "a", range(4)) is None
    assert (pins.blocks, evictor.pinned, pins.began) == (0, 0, 0)


def test_a_pin_that_lost_everything_ends_by_pressure() -> None:
    pins, evictor, clock = make()
    lost = pin(pins, evictor, "a", range(4))
    assert lost is not None
    evictor.evict(4, 1001.0)
    assert pins.blocks == 0
    clock.now_s += 1
    pins.step()
    assert (lost.end, lost.ended_s, pins.held_s) == (PinEnd.PRESSURE, 1001.0, 1.0)


def test_a_pin_ends_with_its_time_unless_its_job_is_back() -> None:
    pins, evictor, clock = make()
    gone, back = (pin(pins, evictor, owner, range(first, first + 4)) for owner, first in (("gone", 0), ("back", 4)))
    assert gone is not None
    assert back is not None
    assert pins.await_return("back")
    assert not pins.await_return("unknown")
    clock.now_s += 10
    pins.step()
    assert (gone.end, back.end, pins.blocks) == (PinEnd.EXPIRED, None, 4)
    pins.end("back", PinEnd.RETURNED)
    pins.end("back", PinEnd.RETURNED)
    assert dict(pins.ended) == {"expired": 1, "returned": 1}


def test_a_pin_is_decided_upon_anew_when_its_time_is_over() -> None:
    pins, evictor, clock = make()
    ages: list[float] = []

    def decide(age_s: float) -> Hold:
        ages.append(age_s)
        return Hold(5.0, 2.0 + age_s) if age_s < 12 else RELEASE

    held = pin(pins, evictor, "a", range(4), decide=decide)
    assert held is not None
    for _ in range(16):
        clock.now_s += 1
        pins.step()
        pins.check_integrity()
    assert (ages, held.end, held.ended_s, held.value_s) == ([0.0, 5.0, 10.0, 15.0], PinEnd.EXPIRED, 1015.0, 12.0)


def test_a_time_too_short_to_be_added_is_over() -> None:
    """As rounding leaves it, when a pin is decided upon at the very time for which the next return is expected."""
    pins, evictor, clock = make()
    held = pin(pins, evictor, "a", range(4), decide=lambda age_s: Hold(5.0 - age_s or 1e-14, 1.0))
    assert held is not None
    clock.now_s += 5
    pins.step()
    assert held.end is PinEnd.EXPIRED


@pytest.mark.parametrize("jump_s", [-900.0, 1e6])
def test_a_clock_that_jumps_leaves_no_pin_for_ever(jump_s: float) -> None:
    pins, evictor, clock = make()
    pin(pins, evictor, "a", range(4))
    clock.now_s += jump_s
    pin(pins, evictor, "b", range(4, 8))
    for _ in range(4):
        clock.now_s += 500
        pins.step()
        pins.check_integrity()
    assert (len(pins), pins.blocks, evictor.pinned) == (0, 0, 0)


def test_a_clock_that_goes_back_takes_no_time_off_what_was_held() -> None:
    pins, evictor, clock = make()
    pin(pins, evictor, "a", range(4))
    clock.now_s -= 500
    pins.end("a", PinEnd.RETURNED)
    assert pins.held_s == 0.0


def test_guarded_blocks_outlast_free_ones_and_pins_worth_less() -> None:
    pins, evictor, _ = make()
    free(evictor, range(8))
    pin(pins, evictor, "poor", range(8, 12), rank=1.0)
    pin(pins, evictor, "rich", range(12, 16), rank=3.0)
    pins.guard("waits", range(4), 2.0)
    pins.check_integrity()
    assert (pins.blocks, evictor.pinned) == (8, 12), "a guard is no pin"
    order = evictor.evict(16, 1001.0)
    assert [set(order[first : first + 4]) for first in range(0, 16, 4)] == [
        {4, 5, 6, 7},
        {8, 9, 10, 11},
        {0, 1, 2, 3},
        {12, 13, 14, 15},
    ]


def test_a_guard_ends_once_and_what_it_kept_ages_on() -> None:
    pins, evictor, _ = make()
    free(evictor, range(8))
    pins.guard("waits", [0, 1], 2.0)
    pins.guard("too late", [0, 1], 9.0)
    pins.guard("nothing free", [40], 9.0)
    pins.drop_guard("too late")
    assert evictor.pinned == 2
    pins.drop_guard("waits")
    pins.drop_guard("waits")
    pins.drop_guard("unknown")
    assert evictor.pinned == 0
    pins.check_integrity()


def test_a_reset_ends_pins_and_guards() -> None:
    pins, evictor, _ = make()
    free(evictor, range(4))
    ended = pin(pins, evictor, "a", range(4, 8))
    pins.guard("waits", range(4), 2.0)
    pins.reset()
    assert ended is not None
    assert (ended.end, evictor.pinned, pins.blocks) == (PinEnd.RESET, 0, 0)
    pins.check_integrity()
    # Nobody's value stays behind for whoever gets the number next.
    pins.drop_guard("waits")
    pins.guard("waits", range(4), 2.0)
    assert evictor.pinned == 4


def pin_by_its_end(pins: Pins, evictor: PinnedEvictor, owner: str, blocks: list[int]) -> None:
    """The pin that would end first gives way first."""
    begun = pins.begin(
        owner,
        job="j",
        tenant="",
        turn=0,
        blocks=used_blocks(blocks),
        decide=lambda age_s, _: hold()(age_s),
        rank=lambda pin: pin.expires_s,
    )
    assert begun is not None
    positions = [16 * (1 + block) for block in blocks]
    evictor.add(blocks, positions, begun.began_s, FreeContext(pin=begun.number))
    pins.step()


def test_the_count_of_pinned_blocks_follows_whatever_happens() -> None:
    chance = random.Random(4)
    pins, evictor, clock = make(budget=40)
    used: set[int] = set()
    waiting: list[str] = []
    free(evictor, range(NUM_BLOCKS))
    for number in range(1500):
        clock.now_s += chance.choice((0.0, 0.1, 3.0))
        match chance.randrange(6):
            case 0:
                used.update(evictor.evict(min(4, len(evictor)), clock.now_s))
            case 1 if used:
                blocks = sorted(used)[: chance.randint(1, 9)]
                used -= set(blocks)
                pin_by_its_end(pins, evictor, f"{number}", blocks)
            case 2:
                hit = chance.randrange(NUM_BLOCKS)
                if hit not in used:
                    evictor.remove(hit)
                    used.add(hit)
            case 3:
                waiting.append(f"{number}")
                pins.guard(waiting[-1], chance.sample(range(NUM_BLOCKS), 5), chance.random())
            case 4 if waiting:
                pins.drop_guard(waiting.pop(0))
            case 5:
                pins.step()
        assert pins.blocks == sum(map(pins.blocks_left, pins))
        pins.check_integrity()
    assert pins.began > 50


def test_to_count_costs_one_look_where_nothing_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    pins, evictor, _ = make()
    for number in range(10):
        pin(pins, evictor, f"{number}", range(4 * number, 4 * number + 4))
    pins.guard("waits", range(40, 44), 1.0)
    asked: list[int] = []
    size_of = PinnedEvictor.size_of
    monkeypatch.setattr(PinnedEvictor, "size_of", lambda self, number: asked.append(number) or size_of(self, number))
    assert [pins.blocks for _ in range(100)] == [40] * 100
    assert len(asked) <= 10
    evictor.remove(0)
    assert pins.blocks == 39


def test_blocks_that_nobody_answers_for_are_found() -> None:
    pins, evictor, _ = make()
    evictor.add([0, 1], [16, 32], 1000.0, FreeContext(pin=77))
    with pytest.raises(IntegrityError, match=r"^2 \+ 0 blocks are pinned, 0 \+ 0 have a reason$"):
        pins.check_integrity()


def test_how_pins_are_ranked() -> None:
    pins, evictor, _ = make()
    begun = pin(pins, evictor, "a", range(4))
    assert begun is not None
    assert pin_rank("job arrival", 50.0)(begun) > pin_rank("job arrival", 60.0)(begun)
    assert pin_rank("deadline", 50.0)(begun) == 1e9 - 1010.0


def test_a_job_s_end_looks_at_its_own_pins_alone() -> None:
    pins, _, _ = make()
    for number in range(50):
        pins.begin(
            f"turn {number}",
            job=CountedName(number),
            tenant="",
            turn=0,
            blocks=used_blocks([number % 8]),
            decide=lambda *_: Hold(1.0, 1.0),
            rank=lambda _: 1.0,
        )
    CountedName.comparisons = 0
    for number in range(50):
        pins.end_all(PinEnd.JOB_OVER, str(number))
    assert dict(pins.ended) == {"job over": 50}
    assert CountedName.comparisons <= 150
    pins.check_integrity()


def test_no_pin_begins_while_the_records_of_pins_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentcache.engine.blocks.pins._MAX_RESERVATIONS", 3)
    pins, evictor, _ = make()

    def begin(owner: str) -> Pin | None:
        return pins.begin(
            owner,
            job=owner,
            tenant="",
            turn=0,
            blocks=used_blocks(range(4)),
            decide=lambda *_: Hold(1.0, 1.0),
            rank=lambda _: 1.0,
        )

    assert [begin(owner) is not None for owner in "abcd"] == [True, True, True, False]
    pins.end("b", PinEnd.RETURNED)
    assert begin("d") is not None
    assert (len(pins), evictor.reservations) == (3, 3)
    pins.check_integrity()


def test_of_a_jobs_turns_that_wait_the_latest_have_pins() -> None:
    pins, _, _ = make()
    for number in range(MAX_PENDING + 3):
        pins.begin(
            f"turn {number}",
            job="job",
            tenant="",
            turn=number,
            blocks=used_blocks([number % 8]),
            decide=lambda *_: Hold(1.0, 1.0),
            rank=lambda _: 1.0,
        )
    assert [pin.turn for pin in pins] == list(range(3, MAX_PENDING + 3))
    assert dict(pins.ended) == {"budget": 3}
    pins.check_integrity()


def test_pins_whose_time_is_over_at_once_end_in_parts() -> None:
    pins, evictor, clock = make()
    for number in range(NUM_BLOCKS):
        pin(pins, evictor, f"{number % 8} {number}", range(number, number + 1))
    clock.now_s += 1e4
    for left in (32, 0):
        pins.step()
        assert len(pins) == left
    pins.check_integrity()
