"""Queues requests, with fill requests in front of the one that is next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agentcache.engine.segments.gap_filler import GapFiller
from agentcache.engine.vllm.types import Request, RequestQueue


class FillingQueue(RequestQueue):
    """Show fill requests at the front of vLLM's own queue, which keeps the order. They are never stored in it."""

    def __init__(self, queue: RequestQueue, filler: GapFiller) -> None:
        self._queue = queue
        self._filler = filler
        self._front: Request | None = None

    def peek_request(self) -> Request:
        """Return the request at the front: a fill request as long as the next one needs any."""
        self._front = self._filler.next_row(self._queue.peek_request())
        return self._front

    def pop_request(self) -> Request:
        """Take the request at the front.

        Where a fill request could not be scheduled, its parent leaves the queue: what keeps a fill
        request from running keeps its parent, too, and both are looked at again in the next step.
        """
        front, self._front = self._front, None
        if front is not None and front.request_id in self._filler.rows:
            return front
        return self._queue.pop_request()

    def add_request(self, request: Request) -> None:
        """Add a client's request to vLLM's queue."""
        self._queue.add_request(request)

    def prepend_request(self, request: Request) -> None:
        """Put a request back at the front, unless it is a fill request: those are planned anew after a preemption."""
        if request.request_id not in self._filler.rows:
            self._queue.prepend_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Put requests back at the front of vLLM's queue."""
        self._queue.prepend_requests(requests)

    def remove_request(self, request: Request) -> None:
        """Take out a request that waits."""
        self._front = None
        self._queue.remove_request(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Take out those of the requests that wait."""
        self._front = None
        self._queue.remove_requests(requests)

    def __bool__(self) -> bool:
        """Tell whether any client's request waits."""
        return bool(self._queue)

    def __len__(self) -> int:
        """Return the number of clients' requests that wait."""
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        """Iterate over the clients' requests that wait."""
        return iter(self._queue)
