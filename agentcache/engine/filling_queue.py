"""The queue of waiting requests, with fill rows in front of the one that is next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from agentcache.engine.gap_filler import GapFiller


class FillingQueue(RequestQueue):
    """vLLM's own queue keeps the order; fill rows are seen only by whoever looks at its front, and never stored."""

    def __init__(self, queue: RequestQueue, filler: GapFiller) -> None:
        self._queue = queue
        self._filler = filler
        self._front: Request | None = None

    def peek_request(self) -> Request:
        self._front = self._filler.next_row(self._queue.peek_request())
        return self._front

    def pop_request(self) -> Request:
        """The request at the front. In place of a fill row that could not be scheduled its parent leaves the queue:

        what keeps a fill row from running keeps its parent, too, and both are looked at again in the next step.
        """
        front, self._front = self._front, None
        if front is not None and front.request_id in self._filler.rows:
            return front
        return self._queue.pop_request()

    def add_request(self, request: Request) -> None:
        self._queue.add_request(request)

    def prepend_request(self, request: Request) -> None:
        """Not for fill rows, which are planned anew after a preemption."""
        if request.request_id not in self._filler.rows:
            self._queue.prepend_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        self._queue.prepend_requests(requests)

    def remove_request(self, request: Request) -> None:
        self._queue.remove_request(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        self._queue.remove_requests(requests)

    def __bool__(self) -> bool:
        return bool(self._queue)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)
