from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tracked_requests import ASKED, BASH, TASK, Tracked
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import RequestStatus

from agentcache.engine.blocks.pins import Decide, PinEnd
from agentcache.engine.order.job_queue import ORDINARY, PINNED
from agentcache.engine.request_state import QueuePriority
from agentcache.engine.rpc.core_calls import release
from agentcache.policy.runtime_policy import Order, RuntimePolicy
from tool_runtime.learning.continuum import ContinuumCode
from tool_runtime.learning.ttl import Hold, Situation


class NotedPins:
    """Pins one block of every turn for which the estimator asks for any time."""

    blocks = 3

    def __init__(self) -> None:
        self.notes: list[tuple[object, ...]] = []
        self.live: dict[str, Any] = {}

    def begin(
        self,
        owner: str,
        *,
        job: str,
        tenant: str,
        turn: int,
        blocks: Sequence[Any],
        decide: Decide,
        rank: Callable[[Any], float],
    ) -> Any:
        hold = decide(0.0, 1 + len(blocks))
        if hold.ttl_s <= 0:
            return None
        pin = SimpleNamespace(number=7, blocks=1, value_s=hold.value_s, expires_s=5000.0, turn=turn, rank=rank)
        self.notes.append(("pinned", owner, job, tenant, turn, hold.ttl_s))
        self.live[owner] = pin
        return pin

    def await_return(self, owner: str) -> bool:
        return owner in self.live

    def end(self, owner: str, cause: PinEnd) -> None:
        if self.live.pop(owner, None) is not None:
            self.notes.append(("ended", owner, cause.value))

    def end_all(self, cause: PinEnd, job: str) -> None:
        self.notes.append(("all ended", job, cause.value))

    def guard(self, request_id: str, block_ids: list[int], rank_value: float) -> None:
        self.notes.append(("guarded", request_id, block_ids, rank_value))

    def drop_guard(self, request_id: str) -> None:
        self.notes.append(("unguarded", request_id))

    def step(self) -> None:
        self.notes.append(("step",))

    def reset(self) -> None:
        self.notes.append(("reset",))


def make_pinning(**runtime_policy: Any) -> tuple[Tracked, NotedPins]:
    pins = NotedPins()
    return Tracked(RuntimePolicy(ttl="released", **runtime_policy), pins=pins, estimator=ContinuumCode()), pins


def test_a_pin_lasts_until_its_job_is_admitted_again() -> None:
    tracked, pins = make_pinning(order=Order())
    known = tracked.turn("a", ASKED, session="s", salt="tenant", calls=[BASH])
    (job,) = tracked.tracker.stats.jobs
    assert pins.notes[-1] == ("pinned", "a", job, "", 0, 2.0)
    request = tracked.ask("b", [*known, 5], session="s", salt="tenant")
    assert tracked.tracker.priority_of(request) == QueuePriority(PINNED, 1000.0, 1001.0)
    assert ("ended", "a", "returned") not in pins.notes
    tracked.admit(request)
    assert pins.notes[-1] == ("ended", "a", "returned")
    tracked.reply(request)
    # The turn ended with an answer: nothing to pin.
    assert pins.live == {}
    assert len(tracked.tracker.stats.jobs[job].pins) == 1


def test_a_request_aborted_in_the_queue_ends_its_job_s_pin() -> None:
    tracked, pins = make_pinning()
    known = tracked.turn("a", ASKED, session="s", calls=[BASH])
    request = tracked.ask("b", [*known, 5], session="s")
    tracked.reply(request, tokens=0, status=RequestStatus.FINISHED_ABORTED)
    assert pins.live == {}


@pytest.mark.parametrize("status", [RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_LENGTH_CAPPED])
def test_a_turn_that_came_to_nothing_is_not_pinned(status: RequestStatus) -> None:
    tracked, pins = make_pinning()
    tracked.reply(tracked.ask("a", ASKED, session="s", calls=None), status=status)
    assert pins.live == {}


def test_a_pinned_job_needs_no_rank_to_be_let_pass_the_pins() -> None:
    tracked, _ = make_pinning(order=None, wait_for_pins="weighed")
    known = tracked.turn("a", ASKED, session="s", calls=[BASH])
    request = tracked.ask("b", [*known, 5], session="s")
    assert tracked.tracker.priority_of(request).rank == ORDINARY
    assert not tracked.tracker.find_wait(request, available=0)
    other = tracked.ask("other", ASKED, session="other")
    assert tracked.tracker.find_wait(other, available=6)


def test_a_decision_to_hold_hears_whether_requests_wait() -> None:
    pins = NotedPins()
    asked: list[float] = []

    class Noting(ContinuumCode):
        def decide(self, situation: Situation) -> Hold:
            asked.append(situation.price > 0)
            return super().decide(situation)

    tracked = Tracked(RuntimePolicy(ttl="released"), pins=pins, estimator=Noting())
    for waiting in (0, 2):
        tracked.waiting = waiting
        tracked.reply(tracked.ask(f"{waiting}", ASKED, session=f"{waiting}", calls=[BASH]))
    assert asked == [False, True]


def test_pins_of_jobs_that_are_over_end() -> None:
    tracked, pins = make_pinning()
    tracked.turn("a", ASKED, session="s", calls=[BASH])
    release(tracked.tracker, "s")
    assert ("all ended", "s", "released") in pins.notes
    tracked.turn("b", ASKED, session="t", calls=[BASH])
    tracked.clock.now_s += 4000
    tracked.tracker.step()
    assert pins.notes[-2:] == [("step",), ("all ended", "t", "job over")]
    tracked.tracker.reset()
    assert pins.notes[-1] == ("reset",)


@pytest.mark.parametrize(("pin_rank", "expected"), [("job arrival", 1e9 - 1000.0), ("deadline", 1e9 - 5000.0)])
def test_what_gives_way_first(pin_rank: str, expected: float) -> None:
    tracked, pins = make_pinning(pin_rank=pin_rank, order=Order(patience_s=5.0))
    known = tracked.turn("a", ASKED, session="s", calls=[BASH])
    tracked.clock.now_s += 100
    tracked.turn("b", [*known, 5], session="s", calls=[TASK])
    pin = pins.live["b"]
    assert pin.rank(pin) == expected


def make_block(block_id: int, ref_cnt: int = 0) -> KVCacheBlock:
    block = KVCacheBlock(block_id)
    block.ref_cnt = ref_cnt
    return block


def test_a_waiting_request_s_hits_are_guarded_until_it_leaves() -> None:
    tracked, pins = make_pinning(order=Order(patience_s=5.0), protect_waiting=True)
    tracked.hits = [make_block(7), make_block(8, ref_cnt=1), make_block(9)]
    requests = [tracked.ask(name, ASKED, session=name, calls=None) for name in "ab"]
    # Others run on the block in their midst. Whoever came first is worth most.
    assert pins.notes == [("guarded", name, [7, 9], 1e9 - 1000.0) for name in "ab"]
    pins.notes.clear()
    tracked.admit(requests[0])
    tracked.reply(requests[1], tokens=0, status=RequestStatus.FINISHED_ABORTED)
    assert pins.notes == [("unguarded", "a"), ("unguarded", "b")]


@pytest.mark.parametrize("hits", [[], [make_block(7, ref_cnt=1)]])
def test_nothing_is_guarded_where_no_hit_block_is_free(hits: list[KVCacheBlock]) -> None:
    tracked, pins = make_pinning(protect_waiting=True)
    tracked.hits = hits
    tracked.ask("a", ASKED, session="s")
    assert pins.notes == []


def test_policies_that_do_not_protect_who_waits_do_not_look() -> None:
    tracked, pins = make_pinning()
    tracked.hits = [make_block(7)]
    tracked.admit(tracked.ask("a", ASKED, session="s"))
    assert pins.notes == []
