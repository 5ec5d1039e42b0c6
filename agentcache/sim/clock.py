"""Keeps the time of a simulation, which passes from one planned event to the next."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable


class VirtualClock:
    """Seconds since the run began."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now(self) -> float:
        """Return the seconds since the run began."""
        return self._now_s

    def advance_to(self, time_s: float) -> None:
        """Advance to a time. Raises ValueError for one that has passed."""
        if time_s < self._now_s:
            raise ValueError(f"the clock stands at {self._now_s!r} s and cannot go back to {time_s!r} s")
        self._now_s = time_s


Action = Callable[[], None]


class Timeline:
    """Plans by time; at equal times, what was planned first comes first."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._events: list[tuple[float, int, Action]] = []
        self._numbers = itertools.count()

    def plan(self, time_s: float, action: Action) -> None:
        """Plan an action for a time, which must not have passed."""
        heapq.heappush(self._events, (time_s, next(self._numbers), action))

    @property
    def next_s(self) -> float:
        """The time of the next event; infinite when nothing is planned."""
        return self._events[0][0] if self._events else math.inf

    def bring_forward(self, time_s: float) -> None:
        """Bring all that is planned forward by one time, such that the next event is at `time_s` or earlier."""
        if self._events and (early_s := self._events[0][0] - time_s) > 0:
            # Their order stays, so this is still a heap.
            self._events = [(at_s - early_s, number, action) for at_s, number, action in self._events]

    def advance(self) -> bool:
        """Let time go on to the next event and do all that is planned for then; False when nothing is planned."""
        if not self._events:
            return False
        time_s = self._events[0][0]
        self._clock.advance_to(time_s)
        while self._events and self._events[0][0] == time_s:
            heapq.heappop(self._events)[2]()
        return True
