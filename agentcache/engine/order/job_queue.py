"""Queues requests in the order of their jobs."""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from agentcache.engine.request_state import QueuePriority
from agentcache.engine.vllm.types import Request, RequestQueue, RequestStatus
from agentcache.policy.runtime_policy import Order

PREEMPTED, PINNED, ORDINARY = range(3)


def find_priority(
    order: Order | None, job_arrival_s: float, now_s: float, *, pinned: bool, behind: int = 0, hurry_s: float = 0.0
) -> QueuePriority:
    """Find the priority of a request that comes now; None is first come, first served. `pinned`: its job has a pin.

    Requests of a job's sub-agents share its seniority: of one that is `behind` others of them in the engine, the first
    has had more. `hurry_s` is what its client adds.
    """
    if order is None:
        return QueuePriority(ORDINARY, now_s, now_s)
    time_s = max(job_arrival_s, now_s - order.seniority_s)
    if behind or hurry_s:
        time_s = now_s - (now_s - time_s) / (1 + behind) - hurry_s
    return QueuePriority(PINNED if pinned else ORDINARY, time_s, now_s)


class QueueEntry(NamedTuple):
    """A request in the queue. Its keys differ from those of all others."""

    request: Request
    priority: QueuePriority
    key: tuple[Any, ...]
    arrival: tuple[float, int]


class Lines:
    """Entries behind their keys, in ascending order: by priority, by arrival, and those that keep their place by it."""

    def __init__(self) -> None:
        self.by_priority: list[tuple[tuple[Any, ...], QueueEntry]] = []
        self.by_arrival: list[tuple[tuple[float, int], QueueEntry]] = []
        self.in_place: list[tuple[tuple[float, int], QueueEntry]] = []

    def add(self, entry: QueueEntry) -> None:
        """Put an entry where it belongs."""
        insort(self.by_priority, (entry.key, entry))
        insort(self.by_arrival, (entry.arrival, entry))
        if entry.priority.by_arrival:
            insort(self.in_place, (entry.arrival, entry))

    def remove(self, entry: QueueEntry) -> None:
        """Take out an entry."""
        del self.by_priority[bisect_left(self.by_priority, (entry.key, entry))]
        del self.by_arrival[bisect_left(self.by_arrival, (entry.arrival, entry))]
        if entry.priority.by_arrival:
            del self.in_place[bisect_left(self.in_place, (entry.arrival, entry))]

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.by_priority)

    def __iter__(self) -> Iterator[Request]:
        """Iterate over the requests by priority."""
        return (entry.request for _, entry in self.by_priority)


class JobQueue(RequestQueue):
    """Preempted requests first, then those out of patience as they came, then by priority.

    To find a place takes O(log n); a request that comes or goes moves the pointers behind it.

    One that keeps its place by arrival waits for none that came after it, and so at most for as long as where all are
    served as they come; many of them delay others no more than there. A request that is put back, preempted or skipped,
    goes where its first priority is.
    """

    def __init__(
        self, find_priority: Callable[[Request], QueuePriority], patience_s: float, clock: Callable[[], float]
    ) -> None:
        self._find_priority = find_priority
        self._patience_s = patience_s
        self._clock = clock
        self._lines = Lines()
        self._waiting: dict[str, QueueEntry] = {}
        self._front: str | None = None
        # Of the first addition: requests that are put back stay where they were.
        self._priorities: WeakKeyDictionary[Request, tuple[QueuePriority, int]] = WeakKeyDictionary()
        self._count = itertools.count()

    def add_request(self, request: Request) -> None:
        """Put the request where its priority is; a preempted one in front."""
        if (known := self._priorities.get(request)) is None:
            known = self._priorities[request] = self._find_priority(request), next(self._count)
        priority, number = known
        if request.status == RequestStatus.PREEMPTED:
            priority = priority._replace(rank=PREEMPTED)
        arrival = priority.arrival_s, number
        key = priority.rank, priority.time_s, priority.arrival_s, request.arrival_time, number
        entry = self._waiting[request.request_id] = QueueEntry(request, priority, key, arrival)
        self.find_lines(request).add(entry)

    def find_lines(self, request: Request) -> Lines:  # noqa: ARG002
        """Find the lines that a request stands in."""
        return self._lines

    def peek_request(self) -> Request:
        """Return the next request, and note it for `pop_request`. Raises IndexError when nothing waits."""
        request = self.find_front().request
        self._front = request.request_id
        return request

    def pop_request(self) -> Request:
        """Take out the request that was shown last, if it still waits: the clock may have moved on."""
        if self._front not in self._waiting:
            self.peek_request()
        assert self._front is not None
        request = self._waiting[self._front].request
        self.remove_request(request)
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
        self.find_lines(request).remove(self._waiting.pop(request.request_id))

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Take out those of the requests that wait."""
        for request in requests:
            if request.request_id in self._waiting:
                self.remove_request(request)

    def __bool__(self) -> bool:
        """Tell whether any request waits."""
        return bool(self._waiting)

    def __len__(self) -> int:
        """Return the number of requests that wait."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        """Iterate over the requests by priority."""
        return iter(list(self._lines))

    def find_front(self) -> QueueEntry:
        """Find the next request. Raises IndexError when nothing waits."""
        if not self._waiting:
            raise IndexError("no request waits")
        return self.choose(self._lines)

    def choose(self, lines: Lines) -> QueueEntry:
        """Choose the next of the requests in these lines."""
        first, oldest = lines.by_priority[0][1], lines.by_arrival[0][1]
        if first.priority.rank == PREEMPTED:
            return first
        if self._clock() - oldest.priority.arrival_s >= self._patience_s:
            return oldest
        in_place = lines.in_place[0][1] if lines.in_place else first
        return in_place if in_place.arrival < first.arrival else first
