"""Queues requests in the order of their jobs, and chooses the running one to preempt when another finds no blocks."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from agentcache.engine.parts import Part
from agentcache.engine.vllm.types import Request, RequestQueue, RequestStatus
from agentcache.policy.runtime_policy import Order, Victim


class QueuePriority(NamedTuple):
    """Lower ones are served first. A request's priority stays the same while it waits.

    With `by_arrival` it is served before those that have come after it, whatever their priority.
    """

    rank: int
    time_s: float
    arrival_s: float
    by_arrival: bool = False


PREEMPTED, PINNED, ORDINARY = range(3)
# Entries of requests that left, beside as many as wait.
_SURPLUS = 64


def find_priority(order: Order | None, job_arrival_s: float, now_s: float, *, pinned: bool) -> QueuePriority:
    """Find the priority of a request that comes now; None is first come, first served. `pinned`: its job has a pin."""
    if order is None:
        return QueuePriority(ORDINARY, now_s, now_s)
    return QueuePriority(PINNED if pinned else ORDINARY, max(job_arrival_s, now_s - order.seniority_s), now_s)


class _Entry(NamedTuple):
    """A request in the queue, by name: it has its whole prompt, and an entry may outlive it."""

    request_id: str
    priority: QueuePriority
    key: tuple[Any, ...]
    arrival: tuple[float, int]


class _Heap:
    """Entries by a key. Those of requests that left stay until they come up, or are many.

    A request that comes back has the same entry, so the one that stayed counts again.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[tuple[Any, ...], _Entry]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, key: tuple[Any, ...], entry: _Entry) -> None:
        heapq.heappush(self._entries, (key, entry))

    def find_first(self, is_waiting: Callable[[_Entry], bool]) -> _Entry | None:
        entries = self._entries
        while entries and not is_waiting(entries[0][1]):
            heapq.heappop(entries)
        return entries[0][1] if entries else None

    def drop_surplus(self, waiting: int, is_waiting: Callable[[_Entry], bool]) -> None:
        """Drop what is there twice, or left: every step vLLM pops the requests it skips and puts them back."""
        if len(self._entries) > 2 * waiting + _SURPLUS:
            self._entries = [each for each in set(self._entries) if is_waiting(each[1])]
            heapq.heapify(self._entries)


class JobQueue(RequestQueue):
    """Preempted requests first, then those out of patience as they came, then by priority. O(log n) each.

    One that keeps its place by arrival waits for none that came after it, and so at most for as long as where all are
    served as they come; many of them delay others no more than there. A request that is put back, preempted or skipped,
    goes where its first priority is.
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
        self._by_priority, self._by_arrival, self._in_place = _Heap(), _Heap(), _Heap()
        self._waiting: dict[str, tuple[_Entry, Request]] = {}
        self._front: str | None = None
        # Of the first addition: requests that are put back stay where they were.
        self._entries: WeakKeyDictionary[Request, _Entry] = WeakKeyDictionary()
        self._count = itertools.count()

    def add_request(self, request: Request) -> None:
        """Put the request where its priority is; a preempted one in front."""
        if (entry := self._entries.get(request)) is None:
            entry = self._entries[request] = _make_entry(request, self._find_priority(request), next(self._count))
        if request.status == RequestStatus.PREEMPTED:
            entry = _make_entry(request, entry.priority._replace(rank=PREEMPTED), entry.arrival[1])
        self._waiting[request.request_id] = entry, request
        self._by_priority.push(entry.key, entry)
        self._by_arrival.push(entry.arrival, entry)
        if entry.priority.by_arrival:
            self._in_place.push(entry.arrival, entry)
        for heap in (self._by_priority, self._by_arrival, self._in_place):
            heap.drop_surplus(len(self._waiting), self._is_waiting)

    def peek_request(self) -> Request:
        """Return the next request, and note it for `pop_request`. Raises IndexError when nothing waits."""
        self._front = self._find_front().request_id
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
        return (request for _, request in sorted(self._waiting.values(), key=lambda waiting: waiting[0].key))

    def _find_front(self) -> _Entry:
        if (first := self._by_priority.find_first(self._is_waiting)) is None:
            raise IndexError("no request waits")
        if first.priority.rank == PREEMPTED:
            return first
        oldest = self._by_arrival.find_first(self._is_waiting)
        assert oldest is not None
        if self._clock() - oldest.priority.arrival_s >= self._get_patience_s():
            return oldest
        in_place = self._in_place.find_first(self._is_waiting)
        return first if in_place is None or first.arrival < in_place.arrival else in_place

    def _is_waiting(self, entry: _Entry) -> bool:
        waiting = self._waiting.get(entry.request_id)
        return waiting is not None and waiting[0] is entry


def _make_entry(request: Request, priority: QueuePriority, number: int) -> _Entry:
    rank, time_s, arrival_s, _ = priority
    key = rank, time_s, arrival_s, request.arrival_time, number
    return _Entry(request.request_id, priority, key, (arrival_s, number))


class Preemption(Part):
    """Puts the policy's victim last in the batch when a request finds no blocks: vLLM then preempts the last.

    Not before: the batch is served in its order, and a long prefill in front of others would leave them no tokens.
    """

    def __init__(self, victim: Victim, priority_of: Callable[[Request], QueuePriority]) -> None:
        self._victim = victim
        self._priority_of = priority_of

    def choose_victim(self, request: Request, running: list[Request]) -> None:
        """Move a victim from behind the request, which still finds no blocks, to the end.

        The others have this step's tokens already.

        running:  scheduled … | request | behind …   ->   scheduled … | request | behind … without victim | victim
        """
        if self._victim == "last" or request.status != RequestStatus.RUNNING:
            return
        behind = range(running.index(request) + 1, len(running))
        if not behind:
            return
        if self._victim == "cheapest":
            # The cost of a prefill grows with its length.
            place = min(behind, key=lambda index: running[index].num_computed_tokens)
        else:
            place = max(behind, key=lambda index: self._priority_of(running[index]).time_s)
        running.append(running.pop(place))
