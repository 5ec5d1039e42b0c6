"""How long requests wait for their blocks to come from the CPU cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agentcache.engine.histogram import Histogram
from agentcache.engine.jobs.views import HistogramCounts

_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class FetchWaits:
    """A wait is from when a request is first held back to when its blocks are there, or it needs them no more."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # By the request's id.
        self._since: dict[str, float] = {}
        self._seconds = Histogram(_BOUNDS_S)

    def begin(self, request_id: str) -> None:
        """Note that the request is held back. It may be so already."""
        if request_id not in self._since:
            self._since[request_id] = self._clock()

    def end(self, request_ids: Iterable[str]) -> None:
        """Note that these requests, if they are held back, are so no more."""
        for request_id in request_ids:
            if (since_s := self._since.pop(request_id, None)) is not None:
                self._seconds.add(self._clock() - since_s)

    def clear(self) -> None:
        """Forget the waits that have not ended."""
        self._since.clear()

    def view(self) -> HistogramCounts:
        """View the seconds of all waits that have ended."""
        return self._seconds.view()
