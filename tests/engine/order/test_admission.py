"""Requests that wait for pins, and what is kept for requests that wait."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from lone_scheduler import LoneScheduler
from steered_scheduler import do_turn_in_no_time, make_lone, make_patient, run_until_idle, tokens_of
from tracked_requests import ASKED, BLOCK, LOSS_S, Tracked
from vllm.v1.request import RequestStatus
from waiting_requests import BLOCKS_ASKED, RESERVED, SEARCH, make_waiting

from agentcache.engine.scheduler import AgentScheduler
from agentcache.policy.runtime_policy import Order, RuntimePolicy


def test_a_request_that_needs_pinned_blocks_holds_up_the_queue() -> None:
    tracked = make_waiting(pinned=6)
    large, small = tracked.ask("large", [1] * 5 * BLOCK), tracked.ask("small", [2] * BLOCK)
    tracker = tracked.tracker
    assert not tracker.find_wait(small, available=10)
    assert tracker.find_wait(large, available=10)
    assert tracker.find_wait(small, available=10), "or there would never be room for the large one"
    tracker.step()
    assert not tracker.find_wait(small, available=10), "every step begins anew"
    assert not tracker.find_wait(large, available=11)


def test_pins_hold_nobody_back_for_longer_than_the_patience() -> None:
    tracked = make_waiting(pinned=6)
    request = tracked.ask("a", ASKED)
    assert tracked.tracker.find_wait(request, available=6)
    tracked.clock.now_s += 7.9
    tracked.tracker.step()
    assert tracked.tracker.find_wait(request, available=6)
    tracked.clock.now_s += 0.1
    tracked.tracker.step()
    assert not tracked.tracker.find_wait(request, available=6)


def test_each_request_has_its_own_patience_whatever_the_queue() -> None:
    tracked = make_waiting(pinned=6)
    requests = []
    for number in range(7):
        requests.append(tracked.ask(f"{number}", ASKED))
        tracked.clock.now_s += 1
    for request in requests:
        tracked.tracker.step()
        others = [each for each in requests if each is not request and tracked.tracker.find_wait(each, 6)]
        assert len(others) == len(requests) - 1 - requests.index(request), "their patience is not over, or is"
        assert tracked.tracker.find_wait(request, available=6)
        tracked.clock.now_s += 1
        assert not tracked.tracker.find_wait(request, available=6), "whichever request was held back in this step"
        tracked.tracker.admitted(request, 0, ())


def test_a_policy_may_wait_for_pins_whatever_the_time() -> None:
    tracked = make_waiting(pinned=6, wait_for_pins="always", order=Order())
    request = tracked.ask("a", ASKED)
    for _ in range(3):
        tracked.tracker.step()
        assert tracked.tracker.find_wait(request, available=6)
        tracked.clock.now_s += 1000


def test_without_a_pin_nobody_waits_however_little_is_free() -> None:
    tracked = make_waiting(pinned=0)
    assert not tracked.tracker.find_wait(tracked.ask("a", ASKED), available=0)


@pytest.mark.parametrize("runtime_policy", [RuntimePolicy(), RuntimePolicy(order=Order())])
def test_policies_that_do_not_wait_for_pins(runtime_policy: RuntimePolicy) -> None:
    tracked = make_waiting(pinned=6)
    other = Tracked(runtime_policy, pins=tracked.pins)
    assert not other.tracker.find_wait(other.ask("a", ASKED), available=0)
    assert other.tracker.waiting.patience_s == math.inf


def test_preempted_requests_and_nobody_s_turns_do_not_wait() -> None:
    tracked = make_waiting(pinned=6)
    request = tracked.ask("a", ASKED)
    request.status = RequestStatus.PREEMPTED
    assert not tracked.tracker.find_wait(request, available=0)
    assert not make_waiting(pinned=6).tracker.find_wait(request, available=0)


def test_nobody_waits_longer_for_pins_than_taking_them_costs() -> None:
    tracked = make_waiting(pinned=6)
    tracked.running = 2
    request = tracked.ask("a", ASKED)
    # It lacks 2 blocks and would take pinned ones; each costs either request that runs LOSS_S.
    cost_s = 2 * 2 * LOSS_S
    free_blocks = 6 + -(-len(ASKED) // BLOCK) - 2
    assert tracked.tracker.find_wait(request, available=free_blocks)
    tracked.tracker.step()
    tracked.clock.now_s += cost_s * 0.9
    assert tracked.tracker.find_wait(request, available=free_blocks)
    tracked.tracker.step()
    tracked.clock.now_s += cost_s * 0.2
    assert not tracked.tracker.find_wait(request, available=free_blocks)


@pytest.mark.parametrize(("lacking", "waits"), [(1, False), (2, False), (3, True)])
def test_a_wait_for_pins_that_saves_little_is_not_begun(lacking: int, waits: bool) -> None:
    tracked = make_waiting(pinned=6, order=Order(patience_s=8.0, least_wait_s=2.5 * LOSS_S))
    tracked.running = 1
    request = tracked.ask("a", ASKED)
    assert tracked.tracker.find_wait(request, available=6 + -(-len(ASKED) // BLOCK) - lacking) == (
        "pins" if waits else None
    )


def test_each_unpinned_admission_restarts_the_wait_for_pins() -> None:
    """However long each has waited by then, while it has patience: a queue does not take a pin at every admission."""
    tracked = make_waiting(pinned=6, order=Order(patience_s=1000))
    # It would take 4 blocks, each of which costs either request that runs LOSS_S.
    tracked.running = 2
    cost_s = 4 * 2 * LOSS_S
    requests = [tracked.ask(name, ASKED) for name in "abc"]
    for request in requests:
        assert tracked.tracker.find_wait(request, available=6)
        tracked.clock.now_s += cost_s * 0.9
        tracked.tracker.step()
        assert tracked.tracker.find_wait(request, available=6)
        tracked.clock.now_s += cost_s * 0.2
        tracked.tracker.step()
        assert not tracked.tracker.find_wait(request, available=6)
        tracked.tracker.admitted(request, 0, ())


def test_the_wait_for_pins_restarts_once_nobody_waits() -> None:
    tracked = make_waiting(pinned=6)
    tracked.running = 2
    gone = tracked.ask("gone", ASKED)
    assert tracked.tracker.find_wait(gone, available=6)
    tracked.reply(gone, tokens=0, status=RequestStatus.FINISHED_ABORTED)
    tracked.waiting = 0
    tracked.tracker.step()
    tracked.clock.now_s += 100
    assert tracked.tracker.find_wait(tracked.ask("new", ASKED), available=6)


def test_a_new_job_leaves_those_under_way_room_to_grow() -> None:
    tracked = make_waiting(pinned=6, order=RESERVED)
    request = tracked.ask("new", ASKED)
    assert tracked.tracker.find_wait(request, available=BLOCKS_ASKED + 6 + 3)
    tracked.tracker.step()
    assert not tracked.tracker.find_wait(request, available=BLOCKS_ASKED + 6 + 4)


def test_that_room_is_at_most_what_is_pinned() -> None:
    tracked = make_waiting(pinned=2, order=RESERVED)
    assert tracked.tracker.find_wait(tracked.ask("a", ASKED), available=BLOCKS_ASKED + 2 + 1)
    tracked.tracker.step()
    assert not tracked.tracker.find_wait(tracked.ask("b", ASKED), available=BLOCKS_ASKED + 2 + 2)
    nothing_pinned = make_waiting(pinned=0, order=RESERVED)
    assert not nothing_pinned.tracker.find_wait(nothing_pinned.ask("c", ASKED), available=0)


@pytest.mark.parametrize(("running", "spare"), [(1.0, 4), (0.05, 4), (0.02, 1)])
def test_running_requests_are_left_room_by_their_share(running: float, spare: int) -> None:
    """Four of a hundred blocks are the reserve; some ninety are held, and nothing is pinned."""
    tracked = make_waiting(pinned=0, order=replace(RESERVED, running=running))
    request = tracked.ask("new", ASKED)
    assert tracked.tracker.find_wait(request, available=BLOCKS_ASKED + spare - 1)
    tracked.tracker.step()
    assert not tracked.tracker.find_wait(request, available=BLOCKS_ASKED + spare)


def test_nothing_running_and_nothing_pinned_leaves_no_room() -> None:
    tracked = make_waiting(pinned=0, order=replace(RESERVED, running=1.0))
    assert not tracked.tracker.find_wait(tracked.ask("new", [1] * 100 * BLOCK), available=100)


def test_a_job_under_way_needs_no_more_than_its_own_room() -> None:
    tracked = make_waiting(pinned=6, order=RESERVED)
    history = tracked.turn("first", ASKED, session="job", calls=(SEARCH,))
    again = tracked.ask("second", [*history, 5], session="job")
    blocks = -(-again.num_tokens // BLOCK)
    assert not tracked.tracker.find_wait(again, available=blocks + 6)
    assert tracked.tracker.find_wait(tracked.ask("new", ASKED), available=BLOCKS_ASKED + 6)
    assert not tracked.tracker.find_wait(again, available=blocks + 6), "a new job holds back new jobs alone"
    assert tracked.tracker.find_wait(tracked.ask("small", [3] * BLOCK), available=50)


def test_a_new_job_waits_for_that_room_for_its_patience() -> None:
    tracked = make_waiting(pinned=6, order=RESERVED)
    request = tracked.ask("new", ASKED)
    tracked.clock.now_s += 7.9
    assert tracked.tracker.find_wait(request, available=BLOCKS_ASKED + 6)
    tracked.clock.now_s += 0.1
    assert not tracked.tracker.find_wait(request, available=BLOCKS_ASKED + 6)


@pytest.mark.parametrize(("spare", "wait_s"), [(0, 4.0), (3, 1.0)])
def test_a_new_job_waits_while_taking_that_room_costs_more(spare: int, wait_s: float) -> None:
    tracked = make_waiting(pinned=6, order=RESERVED)
    # A second for each block of the room.
    tracked.running = round(1 / LOSS_S)
    request = tracked.ask("new", ASKED)
    tracked.clock.now_s += wait_s - 0.01
    assert tracked.tracker.find_wait(request, available=BLOCKS_ASKED + 6 + spare)
    tracked.clock.now_s += 0.02
    tracked.tracker.step()
    assert not tracked.tracker.find_wait(request, available=BLOCKS_ASKED + 6 + spare)


def make_held(model_path: str, blocks: int, **knobs: Any) -> LoneScheduler:
    # So many others that what the pins keep is worth any wait.
    with mock.patch.object(AgentScheduler, "count_running", return_value=1_000_000_000):
        return make_patient(model_path, "agentcache", blocks, **{"pins": {"budget": 1.0}, **knobs})


def test_small_requests_do_not_starve_one_that_waits_for_pins(tiny_model_path: str) -> None:
    lone = make_held(tiny_model_path, blocks=44, order={"patience_s": 1000})
    clock = lone.scheduler.clock
    do_turn_in_no_time(lone, "pinned", tokens_of(1, 178), calls=(SEARCH,), session_id="away")
    assert lone.scheduler.tracker.pins.blocks == 11
    lone.add("running", tokens_of(2, 150), 40)
    lone.step()
    lone.add("large", tokens_of(3, 400), 30)
    order = []
    for number in range(100):
        clock.now_s += 0.1
        lone.add(f"small {number}", tokens_of(10 + number, 40), 30)
        order += lone.step().finished
        lone.scheduler.check_integrity()
        if "large" in order:
            break
    assert order[:2] == ["running", "large"]
    assert lone.scheduler.tracker.pins.blocks == 11, "it did not cost the pin a block"
    run_until_idle(lone)


@pytest.mark.parametrize("flood", [False, True])
def test_a_wait_for_pins_ends_with_the_request_s_patience(tiny_model_path: str, flood: bool) -> None:
    lone = make_held(tiny_model_path, blocks=44, order={"patience_s": 5})
    do_turn_in_no_time(lone, "pinned", tokens_of(1, 178), calls=(SEARCH,), session_id="away")
    lone.add("running", tokens_of(2, 150), 300, calls=())
    lone.step()
    lone.add("large", tokens_of(3, 400), 30, calls=())
    admitted_s = None
    start_s = lone.scheduler.clock.now_s
    for number in range(12):
        lone.scheduler.clock.now_s += 0.5
        if flood:
            lone.add(f"small {number}", tokens_of(10 + number, 40), 1)
        if "large" in lone.step().scheduled and admitted_s is None:
            admitted_s = lone.scheduler.clock.now_s
    assert admitted_s == start_s + 5.0
    run_until_idle(lone)


def test_nobody_waits_for_pins_when_nothing_runs(tiny_model_path: str) -> None:
    lone = make_held(tiny_model_path, blocks=40)
    for number in range(3):
        do_turn_in_no_time(lone, f"pinned {number}", tokens_of(number, 178), calls=(SEARCH,), session_id=f"{number}")
    assert lone.scheduler.tracker.pins.blocks == 33
    lone.add("large", tokens_of(9, 400), 2, calls=())
    assert "large" in lone.step().scheduled
    lone.scheduler.check_integrity()
    run_until_idle(lone)


KNOWN = tokens_of(1, 160)


def make_crowded(model_path: str, *, guarded: bool = True) -> LoneScheduler:
    """Two requests run, and there is no third place. One waits that will hit what was there first."""
    knobs: dict[str, Any] = {"pins": {"budget": 0.0}, "tuning": {"row_s": 0.0}, "order": {"patience_s": 1e6}}
    lone = make_lone(model_path, "agentcache", 60, engine={"max_num_seqs": 2}, **knobs)
    for number, prompt in enumerate((KNOWN, tokens_of(8, 160), tokens_of(9, 160))):
        do_turn_in_no_time(lone, f"{number}", prompt, session_id=f"job {number}")
        lone.scheduler.clock.now_s += 10
    for number in range(2):
        lone.add(f"runs {number}", tokens_of(20 + number, 96), 200)
        lone.step()
    if not guarded:
        lone.scheduler.tracker.pins.guard = lambda *_: None
    lone.add("waits", [*KNOWN, *tokens_of(2, 20)], 2, calls=(), session_id="job 0")
    return lone


@pytest.mark.parametrize("guarded", [True, False])
def test_what_a_waiting_request_will_hit_survives_others(tiny_model_path: str, guarded: bool) -> None:
    lone = make_crowded(tiny_model_path, guarded=guarded)
    pins = lone.scheduler.tracker.pins
    assert (lone.scheduler.evictor.pinned, pins.blocks) == (10 * guarded, 0)
    hits: dict[str, int] = {}
    evicted = 0
    while "waits" not in hits:
        lone.scheduler.clock.now_s += 0.1
        step = lone.step()
        hits |= step.hit_tokens
        evicted += len(step.evicted)
        lone.scheduler.check_integrity()
    assert evicted >= 10, "others took blocks meanwhile"
    assert (hits["waits"] == len(KNOWN)) is guarded
    assert (lone.scheduler.evictor.pinned, lone.scheduler.evictor.adopted) == (0, 0)
    run_until_idle(lone)


@pytest.mark.parametrize("end", ["abort", "reset"])
def test_nothing_is_kept_for_a_request_gone_or_without_hits(tiny_model_path: str, end: str) -> None:
    lone = make_crowded(tiny_model_path)
    assert lone.scheduler.evictor.pinned == 10
    if end == "abort":
        lone.abort("waits")
    else:
        assert lone.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert (lone.scheduler.evictor.pinned, lone.scheduler.evictor.adopted) == (0, 0)
    lone.scheduler.check_integrity()
    run_until_idle(lone)
