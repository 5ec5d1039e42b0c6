"""Queues requests by tenant: among tenants the least virtual time goes first, within one its own order holds."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator

from agentcache.engine.order.tenants import TenantState
from agentcache.engine.vllm.types import Request, RequestQueue


class FairQueue(RequestQueue):
    """A queue for each tenant that waits. To find the next takes O(log tenants): virtual times only grow."""

    def __init__(self, find_tenant: Callable[[Request], TenantState], make_queue: Callable[[], RequestQueue]) -> None:
        self._find_tenant = find_tenant
        self._make_queue = make_queue
        self._queues: dict[str, tuple[TenantState, RequestQueue]] = {}
        # Virtual times as they were, one of each tenant that waits, and of some that no longer do. Of equal ones the
        # oldest entry is first.
        self._times: list[tuple[float, int, str]] = []
        self._timed: set[str] = set()
        self._numbers = itertools.count()
        self._front: str | None = None
        self._length = 0

    def add_request(self, request: Request) -> None:
        """Add a request to its tenant's queue."""
        tenant = self._find_tenant(request)
        if tenant.id not in self._queues:
            self._queues[tenant.id] = tenant, self._make_queue()
        if tenant.id not in self._timed:
            self._timed.add(tenant.id)
            heapq.heappush(self._times, (tenant.virtual_s, next(self._numbers), tenant.id))
        self._queues[tenant.id][1].add_request(request)
        self._length += 1

    def peek_request(self) -> Request:
        """Return the next request, and note it for `pop_request`. Raises IndexError when nothing waits."""
        self._front = self._find_first()
        return self._queues[self._front][1].peek_request()

    def pop_request(self) -> Request:
        """Take out the request that was shown last, if it still waits."""
        if self._front not in self._queues:
            self.peek_request()
        assert self._front is not None
        request = self._queues[self._front][1].pop_request()
        self._note_removed(self._front)
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
        tenant = self._find_tenant(request).id
        self._queues[tenant][1].remove_request(request)
        self._note_removed(tenant)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Take out those of the requests that wait."""
        for request in requests:
            if (held := self._queues.get(tenant := self._find_tenant(request).id)) is None:
                continue
            before = len(held[1])
            held[1].remove_requests([request])
            if len(held[1]) < before:
                self._note_removed(tenant)

    def __bool__(self) -> bool:
        """Tell whether any request waits."""
        return self._length > 0

    def __len__(self) -> int:
        """Return the number of requests that wait."""
        return self._length

    def __iter__(self) -> Iterator[Request]:
        """Iterate over the requests by tenant, the one with the least virtual time first."""
        held = sorted(self._queues.values(), key=lambda each: each[0].virtual_s)
        return itertools.chain.from_iterable([list(queue) for _, queue in held])

    def _note_removed(self, tenant: str) -> None:
        self._length -= 1
        if not self._queues[tenant][1]:
            del self._queues[tenant]

    def _find_first(self) -> str:
        if not self._length:
            raise IndexError("no request waits")
        while True:
            time_s, _, tenant = self._times[0]
            held = self._queues.get(tenant)
            if held is None:
                heapq.heappop(self._times)
                self._timed.remove(tenant)
            elif held[0].virtual_s > time_s:
                heapq.heapreplace(self._times, (held[0].virtual_s, next(self._numbers), tenant))
            else:
                return tenant
