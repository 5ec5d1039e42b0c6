"""The queue of waiting requests in the order of their jobs."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request, RequestStatus

from agentcache.policy.runtime_policy import Order


class QueuePriority(NamedTuple):
    """Lower ones are served first. A request's priority stays the same while it waits."""

    rank: int
    time_s: float
    arrival_s: float


PREEMPTED, PINNED, ORDINARY = range(3)
# Entries of requests that left, beside as many as wait.
_SURPLUS = 64


def find_priority(order: Order | None, job_arrival_s: float, now_s: float, *, pinned: bool) -> QueuePriority:
    """Find the priority of a request that comes now; None is first come, first served. `pinned`: its job has a pin."""
    if order is None:
        return QueuePriority(ORDINARY, now_s, now_s)
    return QueuePriority(PINNED if pinned else ORDINARY, max(job_arrival_s, now_s - order.seniority_s), now_s)


class _Entry(NamedTuple):
    priority: QueuePriority
    arrival_time: float
    number: int
    request_id: str


class JobQueue(RequestQueue):
    """Preempted requests first, then those out of patience as they came, then by priority. O(log n) each.

    A request that is put back, preempted or skipped, goes where its priority is.
    """

    def __init__(
        self,
        find_priority: Callable[[Request], QueuePriority],
        get_patience_s: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._find_priority = find_priority
        self._get_patience_s = get_patience_s
        self._clock = clock
        # The same entries by priority and by arrival. Those of requests that left stay until they come up, so they hold
        # names: a request has its whole prompt.
        self._by_priority: list[_Entry] = []
        self._by_arrival: list[tuple[float, int, _Entry]] = []
        self._waiting: dict[str, tuple[_Entry, Request]] = {}
        self._front: str | None = None
        # Of the first addition: requests that are put back stay in the order in which they came.
        self._numbers: WeakKeyDictionary[Request, int] = WeakKeyDictionary()
        self._count = itertools.count()

    def add_request(self, request: Request) -> None:
        """Put the request where its priority is; a preempted one in front."""
        priority = self._find_priority(request)
        if request.status == RequestStatus.PREEMPTED:
            priority = priority._replace(rank=PREEMPTED)
        number = self._numbers.setdefault(request, next(self._count))
        entry = _Entry(priority, request.arrival_time, number, request.request_id)
        self._waiting[request.request_id] = entry, request
        heapq.heappush(self._by_priority, entry)
        heapq.heappush(self._by_arrival, (priority.arrival_s, number, entry))
        self._drop_surplus()

    def peek_request(self) -> Request:
        """Return the next request, and note it for `pop_request`. Raises IndexError when nothing waits."""
        self._drop_departed()
        first, oldest = self._by_priority[0], self._by_arrival[0][2]
        waited_s = self._clock() - oldest.priority.arrival_s
        is_due = waited_s >= self._get_patience_s() and first.priority.rank != PREEMPTED
        self._front = oldest.request_id if is_due else first.request_id
        return self._waiting[self._front][1]

    def pop_request(self) -> Request:
        """Take out the request that was shown last, if it still waits: the clock may have moved on."""
        if self._front not in self._waiting:
            self.peek_request()
        assert self._front is not None
        _, request = self._waiting.pop(self._front)
        self._front = None
        return request

    def prepend_request(self, request: Request) -> None:
        """Put the request back where its priority is, not in front."""
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Put the requests back where their priorities are, not in front."""
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Request) -> None:
        """Take out a request that waits."""
        del self._waiting[request.request_id]

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Take out those of the requests that wait."""
        for request in requests:
            self._waiting.pop(request.request_id, None)

    def __bool__(self) -> bool:
        """Tell whether any request waits."""
        return bool(self._waiting)

    def __len__(self) -> int:
        """Return the number of requests that wait."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        """Iterate over the requests by priority."""
        return (request for _, request in sorted(self._waiting.values(), key=lambda waiting: waiting[0]))

    def _drop_departed(self) -> None:
        while self._by_priority and not self._is_waiting(self._by_priority[0]):
            heapq.heappop(self._by_priority)
        while self._by_arrival and not self._is_waiting(self._by_arrival[0][2]):
            heapq.heappop(self._by_arrival)

    def _drop_surplus(self) -> None:
        """Drop dead entries below one that stays: vLLM takes out and puts back whoever it skips, every step."""
        if len(self._by_priority) > 2 * len(self._waiting) + _SURPLUS:
            self._by_priority = [entry for entry, _ in self._waiting.values()]
            heapq.heapify(self._by_priority)
        if len(self._by_arrival) > 2 * len(self._waiting) + _SURPLUS:
            self._by_arrival = [(entry.priority.arrival_s, entry.number, entry) for entry, _ in self._waiting.values()]
            heapq.heapify(self._by_arrival)

    def _is_waiting(self, entry: _Entry) -> bool:
        waiting = self._waiting.get(entry.request_id)
        return waiting is not None and waiting[0] is entry
