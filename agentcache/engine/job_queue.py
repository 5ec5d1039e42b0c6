"""The queue of waiting requests in the order of their jobs."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request, RequestStatus

from agentcache.policy.steering import Order


class Place(NamedTuple):
    """Lower ones are served first. A request's place stays the same while it waits."""

    rank: int
    time_s: float
    arrival_s: float


PREEMPTED, PINNED, ORDINARY = range(3)
# Entries of requests that left, beside as many as wait.
_SURPLUS = 64


def find_place(order: Order | None, job_arrival_s: float, now_s: float, *, pinned: bool) -> Place:
    """Of a request that has come now; None is first come, first served. `pinned`: its job has a live pin."""
    if order is None:
        return Place(ORDINARY, now_s, now_s)
    return Place(PINNED if pinned else ORDINARY, max(job_arrival_s, now_s - order.seniority_s), now_s)


class _Entry(NamedTuple):
    place: Place
    arrival_time: float
    number: int
    request: Request


class JobQueue(RequestQueue):
    """Preempted requests first, then those out of patience as they came, then by place. O(log n) each.

    A request that is put back, preempted or skipped, goes where its place is.
    """

    def __init__(self, find_place: Callable[[Request], Place], patience_s: float, clock: Callable[[], float]) -> None:
        self._find_place = find_place
        self._patience_s = patience_s
        self._clock = clock
        # The same entries by place and by arrival. Those of requests that left stay until they come up.
        self._by_place: list[_Entry] = []
        self._by_arrival: list[tuple[float, int, _Entry]] = []
        self._waiting: dict[str, _Entry] = {}
        self._front: Request | None = None
        # Of the first addition: requests that are put back stay in the order in which they came.
        self._numbers: WeakKeyDictionary[Request, int] = WeakKeyDictionary()
        self._count = itertools.count()

    def add_request(self, request: Request) -> None:
        place = self._find_place(request)
        if request.status == RequestStatus.PREEMPTED:
            place = place._replace(rank=PREEMPTED)
        number = self._numbers.setdefault(request, next(self._count))
        entry = _Entry(place, request.arrival_time, number, request)
        self._waiting[request.request_id] = entry
        heapq.heappush(self._by_place, entry)
        heapq.heappush(self._by_arrival, (place.arrival_s, number, entry))
        self._drop_surplus()

    def peek_request(self) -> Request:
        self._drop_departed()
        first, oldest = self._by_place[0], self._by_arrival[0][2]
        waited_s = self._clock() - oldest.place.arrival_s
        is_due = waited_s >= self._patience_s and first.place.rank != PREEMPTED
        self._front = oldest.request if is_due else first.request
        return self._front

    def pop_request(self) -> Request:
        """The request that was shown last, if it still waits: the clock may have moved on."""
        front = self._front
        if front is None or front.request_id not in self._waiting:
            front = self.peek_request()
        self._front = None
        del self._waiting[front.request_id]
        return front

    def prepend_request(self, request: Request) -> None:
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Request) -> None:
        del self._waiting[request.request_id]

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._waiting.pop(request.request_id, None)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        """By place."""
        return (entry.request for entry in sorted(self._waiting.values(), key=lambda entry: entry[:-1]))

    def _drop_departed(self) -> None:
        while self._by_place and not self._is_waiting(self._by_place[0]):
            heapq.heappop(self._by_place)
        while self._by_arrival and not self._is_waiting(self._by_arrival[0][2]):
            heapq.heappop(self._by_arrival)

    def _drop_surplus(self) -> None:
        """Those below one that stays: vLLM takes out and puts back whoever it skips, every step."""
        if len(self._by_place) > 2 * len(self._waiting) + _SURPLUS:
            self._by_place = list(self._waiting.values())
            heapq.heapify(self._by_place)
        if len(self._by_arrival) > 2 * len(self._waiting) + _SURPLUS:
            self._by_arrival = [(entry.place.arrival_s, entry.number, entry) for entry in self._waiting.values()]
            heapq.heapify(self._by_arrival)

    def _is_waiting(self, entry: _Entry) -> bool:
        return self._waiting.get(entry.request.request_id) is entry
