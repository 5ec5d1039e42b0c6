"""Queues requests by tenant: among tenants the least virtual time goes first, within one the order of jobs holds."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator

from agentcache.engine.order.job_queue import JobQueue, Lines, QueueEntry
from agentcache.engine.order.tenants import TenantState
from agentcache.engine.request_state import QueuePriority
from agentcache.engine.vllm.types import Request


class FairQueue(JobQueue):
    """A job queue for each tenant that waits. To find the next takes O(log tenants): virtual times only grow."""

    def __init__(
        self,
        find_priority: Callable[[Request], QueuePriority],
        patience_s: float,
        clock: Callable[[], float],
        find_tenant: Callable[[Request], TenantState],
    ) -> None:
        super().__init__(find_priority, patience_s, clock)
        self._find_tenant = find_tenant
        self._of_tenants: dict[str, tuple[TenantState, Lines]] = {}
        # Virtual times as they were, one of each tenant that waits, and of some that no longer do. Of equal ones the
        # oldest entry is first.
        self._times: list[tuple[float, int, str]] = []
        self._timed: set[str] = set()
        self._entries = itertools.count()

    def find_lines(self, request: Request) -> Lines:
        """Find the lines of the request's tenant."""
        tenant = self._find_tenant(request)
        if tenant.id not in self._timed:
            self._timed.add(tenant.id)
            heapq.heappush(self._times, (tenant.virtual_s, next(self._entries), tenant.id))
        return self._of_tenants.setdefault(tenant.id, (tenant, Lines()))[1]

    def remove_request(self, request: Request) -> None:
        """Take out a request that waits."""
        super().remove_request(request)
        if not self.find_lines(request):
            del self._of_tenants[self._find_tenant(request).id]

    def __iter__(self) -> Iterator[Request]:
        """Iterate over the requests by tenant, the one with the least virtual time first."""
        held = sorted(self._of_tenants.values(), key=lambda each: each[0].virtual_s)
        return iter([request for _, lines in held for request in lines])

    def find_front(self) -> QueueEntry:
        """Find the next request. Raises IndexError when nothing waits."""
        while self._times:
            time_s, _, name = self._times[0]
            tenant, lines = self._of_tenants.get(name, (None, None))
            if tenant is None or lines is None:
                heapq.heappop(self._times)
                self._timed.remove(name)
            elif tenant.virtual_s > time_s:
                heapq.heapreplace(self._times, (tenant.virtual_s, next(self._entries), name))
            else:
                return self.choose(lines)
        raise IndexError("no request waits")
