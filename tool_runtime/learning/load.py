"""How busy the engine is, as it bears on keeping a job's cache: queueing, and what evictions cost."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

# Means are over the latest admissions, and rates over about the last minute. Both are assumed, none is tuned;
# Continuum publishes no window for its T.
_WINDOW = 256
_HALF_LIFE_S = 60.0


class Load:
    """All is 0 before anything was observed. Times are seconds on `clock`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._evicted_waits_s: deque[float] = deque(maxlen=_WINDOW)
        self._rebuilt_s = 0.0
        self._updated_s = clock()

    def admitted(self, wait_s: float, rebuilt_s: float) -> None:
        """Note a request admitted after `wait_s`; `rebuilt_s` of its prefill is for KV that its job had before."""
        if rebuilt_s > 0:
            self._evicted_waits_s.append(max(wait_s, 0.0))
        self._rebuilt_s = self._fade() + rebuilt_s

    @property
    def evicted_wait_s(self) -> float:
        """The mean wait of the latest admissions that found less than their job had left (Continuum's T)."""
        return sum(self._evicted_waits_s) / len(self._evicted_waits_s) if self._evicted_waits_s else 0.0

    def price(self, share: float, *, queued: bool) -> float:
        """Return the seconds of the engine's work lost for each second for which this share of the cache is kept.

        What is rebuilt, in seconds of prefill per second, is what a whole cache more would save; so a share of it
        costs that share. While requests are `queued`, the share would hold some of them, so it costs that share of
        the engine's work as well. It is 0 where nothing has to be rebuilt or to wait: the cache is not short.
        """
        return share * (self._fade() * math.log(2) / _HALF_LIFE_S + float(queued))

    def _fade(self) -> float:
        now_s = self._clock()
        self._rebuilt_s *= math.exp2(-max(now_s - self._updated_s, 0.0) / _HALF_LIFE_S)
        self._updated_s = max(now_s, self._updated_s)
        return self._rebuilt_s
