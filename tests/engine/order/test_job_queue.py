from __future__ import annotations

import itertools
import math

import pytest
from hand_clock import Clock
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kept_objects import list_kept
from sizes import pick_size
from vllm.v1.request import Request, RequestStatus
from waiting_requests import make_request

from agentcache.engine.order.job_queue import ORDINARY, PINNED, PREEMPTED, JobQueue
from agentcache.engine.request_state import QueuePriority


def make_queue(patience_s: float = math.inf, clock: Clock | None = None, **places: QueuePriority) -> JobQueue:
    return JobQueue(lambda request: places[request.request_id], patience_s, clock or Clock())


def names(queue: JobQueue) -> str:
    return "".join(request.request_id for request in queue)


def test_preempted_then_pinned_then_by_arrival_of_the_job() -> None:
    places = {
        "a": QueuePriority(ORDINARY, 1.0, 0.0),
        "b": QueuePriority(ORDINARY, 5.0, 0.0),
        "c": QueuePriority(PINNED, 9.0, 0.0),
        "d": QueuePriority(ORDINARY, 7.0, 0.0),
        "e": QueuePriority(PINNED, 8.0, 0.0),
    }
    queue = make_queue(**places)
    requests = {name: make_request(name) for name in places}
    requests["d"].status = RequestStatus.PREEMPTED
    for request in requests.values():
        queue.add_request(request)
    assert names(queue) == "decab"
    assert [queue.pop_request().request_id for _ in places] == list("decab")


def test_requests_of_one_job_come_as_they_arrived() -> None:
    queue = make_queue(**dict.fromkeys("abc", QueuePriority(ORDINARY, 1.0, 0.0)))
    for name, arrival_time in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
        queue.add_request(make_request(name, arrival_time))
    assert names(queue) == "bca"


def test_skipped_requests_of_one_arrival_time_keep_their_order() -> None:
    queue = make_queue(**dict.fromkeys("abcd", QueuePriority(ORDINARY, 1.0, 0.0)))
    for name in "abcd":
        queue.add_request(make_request(name))
    for _ in range(3):
        # As vLLM puts back what it skipped in a step: the last first.
        skipped = [queue.pop_request() for _ in range(3)]
        queue.prepend_requests(reversed(skipped))
        assert names(queue) == "abcd"


def test_only_older_preempted_requests_precede_a_preempted_one() -> None:
    queue = make_queue(
        a=QueuePriority(ORDINARY, 1.0, 0.0), b=QueuePriority(ORDINARY, 2.0, 0.0), c=QueuePriority(PINNED, 3.0, 0.0)
    )
    requests = {name: make_request(name) for name in "abc"}
    for name in "cba":
        requests[name].status = RequestStatus.PREEMPTED if name != "c" else RequestStatus.WAITING
        queue.prepend_request(requests[name])
    assert names(queue) == "abc"


def test_an_empty_queue_has_nothing_to_give() -> None:
    queue = make_queue(a=QueuePriority(ORDINARY, 0.0, 0.0))
    request = make_request("a")
    queue.add_request(request)
    queue.remove_request(request)
    assert (bool(queue), len(queue), list(queue)) == (False, 0, [])
    with pytest.raises(IndexError):
        queue.peek_request()
    with pytest.raises(IndexError):
        queue.pop_request()


def test_requests_that_wait_elsewhere_may_be_removed_with_others() -> None:
    queue = make_queue(a=QueuePriority(ORDINARY, 0.0, 0.0), b=QueuePriority(ORDINARY, 1.0, 0.0))
    a, b = make_request("a"), make_request("b")
    for request in (a, b):
        queue.add_request(request)
    queue.remove_requests([a, make_request("elsewhere")])
    assert names(queue) == "b"


def test_departed_requests_do_not_pile_up() -> None:
    queue = JobQueue(lambda _: QueuePriority(ORDINARY, 0.0, 0.0, by_arrival=True), math.inf, Clock())
    for number in range(1000):
        request = make_request(f"{number}")
        queue.add_request(request)
        queue.peek_request()
        queue.remove_request(request)
    # The latest stays in a local variable.
    assert len(list_kept(queue, Request)) == 0
    assert len(list_kept(queue, QueuePriority)) <= 2


def test_requests_skipped_at_every_step_come_in_order() -> None:
    places = {"stays": QueuePriority(ORDINARY, 9.0, 0.0), **{f"{n}": QueuePriority(PINNED, 1.0, 1.0) for n in range(5)}}
    queue = make_queue(**places)
    for name in places:
        queue.add_request(make_request(name))
    for _ in range(1000):
        skipped = [queue.pop_request() for _ in range(5)]
        queue.prepend_requests(reversed(skipped))
    assert [queue.pop_request().request_id for _ in places] == [*"01234", "stays"]


def test_out_of_patience_goes_between_preempted_and_pinned() -> None:
    clock = Clock()
    places = {
        "due": QueuePriority(ORDINARY, 1000.0, 1000.0),
        "later": QueuePriority(ORDINARY, 500.0, 1006.0),
        "pinned": QueuePriority(PINNED, 100.0, 1008.0),
        "preempted": QueuePriority(ORDINARY, 900.0, 1009.0),
    }
    queue = make_queue(10.0, clock, **places)
    requests = {name: make_request(name) for name in places}
    for name in ("due", "later", "pinned"):
        queue.add_request(requests[name])
    clock.now_s = 1009.0
    assert queue.peek_request().request_id == "pinned"
    clock.now_s = 1010.0
    assert queue.peek_request().request_id == "due"
    requests["preempted"].status = RequestStatus.PREEMPTED
    queue.add_request(requests["preempted"])
    assert queue.peek_request().request_id == "preempted"
    assert [queue.pop_request().request_id for _ in range(2)] == ["preempted", "due"]
    assert queue.peek_request().request_id == "pinned", "the later one has waited for 4 s"
    clock.now_s = 1016.0
    assert queue.peek_request().request_id == "later"
    assert [queue.pop_request().request_id for _ in range(2)] == ["later", "pinned"]


def test_pop_takes_what_peek_showed_although_time_passes() -> None:
    clock = Clock()
    queue = make_queue(10.0, clock, a=QueuePriority(ORDINARY, 1000.0, 1000.0), b=QueuePriority(PINNED, 1.0, 1001.0))
    for name in "ab":
        queue.add_request(make_request(name))
    shown = queue.peek_request()
    clock.now_s += 10.0
    assert queue.pop_request() is shown
    assert shown.request_id == "b"


def test_what_was_shown_and_left_is_not_taken() -> None:
    queue = make_queue(a=QueuePriority(ORDINARY, 1.0, 0.0), b=QueuePriority(ORDINARY, 2.0, 0.0))
    a, b = make_request("a"), make_request("b")
    for request in (a, b):
        queue.add_request(request)
    queue.remove_request(queue.peek_request())
    assert queue.pop_request() is b


class JobQueueMachine(RuleBasedStateMachine):
    """Against a list that is sorted anew each time. A request keeps its place, and its turn among equals, for good."""

    def __init__(self) -> None:
        super().__init__()
        self.names = map(str, itertools.count())
        self.places: dict[str, QueuePriority] = {}
        self.numbers: dict[str, int] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.shown: Request | None = None
        self.clock = Clock()
        self.queue = JobQueue(lambda request: self.places[request.request_id], 4.0, self.clock)

    def key(self, request: Request) -> tuple[int, float, float, float, int]:
        place = self.places[request.request_id]
        rank = PREEMPTED if request.status == RequestStatus.PREEMPTED else place.rank
        return rank, place.time_s, place.arrival_s, request.arrival_time, self.numbers[request.request_id]

    def first(self) -> Request:
        """Out of patience or by place."""
        first = min(self.waiting, key=self.key)
        if self.key(first)[0] == PREEMPTED:
            return first
        in_order = sorted(self.waiting, key=lambda request: (self.priority(request).arrival_s, self.key(request)[-1]))
        if self.clock.now_s - self.priority(in_order[0]).arrival_s >= 4.0:
            return in_order[0]
        before = in_order[: in_order.index(first)]
        return next((request for request in before if self.priority(request).by_arrival), first)

    def priority(self, request: Request) -> QueuePriority:
        return self.places[request.request_id]

    @rule(seconds=st.integers(0, 3))
    def wait(self, seconds: int) -> None:
        self.clock.now_s += seconds

    @rule(
        rank=st.sampled_from([PINNED, ORDINARY]),
        time_s=st.integers(0, 3),
        arrival_time=st.integers(0, 2),
        by_arrival=st.booleans(),
    )
    def add(self, rank: int, time_s: int, arrival_time: int, by_arrival: bool) -> None:
        name = next(self.names)
        self.places[name] = QueuePriority(rank, time_s, self.clock.now_s, by_arrival)
        self.numbers[name] = len(self.numbers)
        request = make_request(name, arrival_time)
        self.queue.add_request(request)
        self.waiting.append(request)

    @precondition(lambda self: self.waiting)
    @rule()
    def pop(self) -> None:
        first = self.first()
        request = self.queue.pop_request()
        # It was shown before the clock moved on.
        assert request in (first, self.shown)
        self.waiting.remove(request)
        self.running.append(request)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.running))
        self.running.remove(request)
        request.status = RequestStatus.PREEMPTED
        self.queue.prepend_request(request)
        self.waiting.append(request)

    @rule(count=st.integers(1, 4))
    def skip(self, count: int) -> None:
        skipped: list[Request] = []
        for _ in range(min(count, len(self.waiting))):
            assert self.queue.peek_request() is self.first()
            skipped.append(self.queue.pop_request())
            self.waiting.remove(skipped[-1])
        self.waiting += skipped
        self.queue.prepend_requests(reversed(skipped))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.waiting))
        self.queue.remove_request(request)
        self.waiting.remove(request)

    @rule(data=st.data())
    def remove_several(self, data: st.DataObject) -> None:
        everyone = [*self.waiting, *self.running]
        if not everyone:
            return
        gone = data.draw(st.lists(st.sampled_from(everyone), unique=True, max_size=4))
        self.queue.remove_requests(gone)
        self.waiting = [request for request in self.waiting if request not in gone]

    @invariant()
    def agrees(self) -> None:
        expected = sorted(self.waiting, key=self.key)
        assert list(self.queue) == expected
        assert (len(self.queue), bool(self.queue)) == (len(expected), bool(expected))
        if expected:
            self.shown = self.queue.peek_request()
            assert self.shown is self.first()


TestJobQueueMachine = JobQueueMachine.TestCase
TestJobQueueMachine.settings = settings(max_examples=pick_size(20, 60), stateful_step_count=40)
