"""A clock that does not go back, whatever is done to the one below."""

from __future__ import annotations

from collections.abc import Callable


class SteadyClock:
    """A clock that goes on from where it was when the one below jumps back. `resets` counts the jumps."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._offset_s = 0.0
        self._last_s = self._now_s = clock()
        self.resets = 0

    def now_s(self) -> float:
        """Return the time in seconds, never less than before."""
        reading_s = self._clock()
        if reading_s < self._last_s:
            self.resets += 1
            self._offset_s += self._last_s - reading_s
        self._last_s = reading_s
        # Rounding in the offset must not turn time back either.
        self._now_s = max(self._now_s, reading_s + self._offset_s)
        return self._now_s
