"""Time that passes only when the simulation says so."""

from __future__ import annotations


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
