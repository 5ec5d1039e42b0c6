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


class _Line:
    """Entries in ascending order of a key of theirs."""

    def __init__(self, get_key: Callable[[QueueEntry], tuple[Any, ...]]) -> None:
        self._get_key = get_key
        self.entries: list[QueueEntry] = []

    def add(self, entry: QueueEntry) -> None:
        insort(self.entries, entry, key=self._get_key)

    def remove(self, entry: QueueEntry) -> None:
        del self.entries[bisect_left(self.entries, self._get_key(entry), key=self._get_key)]


class Lines:
    """Entries by priority, by arrival, and those that keep their place by arrival."""

    def __init__(self) -> None:
        self.by_priority = _Line(lambda entry: entry.key)
        self.by_arrival = _Line(lambda entry: entry.arrival)
        self.in_place = _Line(lambda entry: entry.arrival)

    def of(self, entry: QueueEntry) -> Iterator[_Line]:
        """Yield the lines that have the entry."""
        yield self.by_priority
        yield self.by_arrival
        if entry.priority.by_arrival:
            yield self.in_place

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.by_priority.entries)

    def __iter__(self) -> Iterator[Request]:
        """Iterate over the requests by priority."""
        return (entry.request for entry in self.by_priority.entries)


class JobQueue(RequestQueue):
    """Preempted requests first, then those out of patience as they came, then by priority.

    To find a place takes O(log n); a request that comes or goes moves the pointers behind it.

    One that keeps its place by arrival waits for none that came after it, and so at most for as long as where all are
    served as they come; many of them delay others no more than there. A request that is put back, preempted or skipped,
    goes where its first priority is.
    """

    def __init__(
        self,
        find_priority: Callable[[Request], QueuePriority],
        patience_s: float,
        clock: Callable[[], float],
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
        for line in self.find_lines(request).of(entry):
            line.add(entry)

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
        entry = self._waiting.pop(request.request_id)
        for line in self.find_lines(request).of(entry):
            line.remove(entry)

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
        first, oldest = lines.by_priority.entries[0], lines.by_arrival.entries[0]
        if first.priority.rank == PREEMPTED:
            return first
        if self._clock() - oldest.priority.arrival_s >= self._patience_s:
            return oldest
        in_place = lines.in_place.entries
        return in_place[0] if in_place and in_place[0].arrival < first.arrival else first
