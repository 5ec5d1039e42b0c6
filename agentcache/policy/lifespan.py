"""Estimates the lifespan that blocks have lately, and moves the frequency's turning point there by λ."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frequency:
    """Two exponentials: a slow one within the lifespan, a steep one after it.

    Both are exponential because only then do two blocks keep their order as time passes, so that a heap can hold them.
    """

    alpha_s: float
    beta_s: float
    tau0_s: float

    @classmethod
    def from_turning_point(cls, lifespan_s: float, reuse_probability: float, slope_ratio: float) -> Frequency:
        """Make the curve that turns at `lifespan_s`: `reuse_probability` there, `slope_ratio` times as steep after."""
        alpha_s = -lifespan_s / math.log(reuse_probability)
        return cls(alpha_s, alpha_s / slope_ratio, lifespan_s * (1 - 1 / slope_ratio))


_NS = 1_000_000_000


class LifespanEstimator:
    """The mean of the last `window` reuse gaps."""

    def __init__(self, window: int) -> None:
        # Whole nanoseconds: the running sum stays exact however many gaps come and go.
        self._gaps_ns: deque[int] = deque(maxlen=window)
        self._sum_ns = 0

    def observe(self, gap_s: float) -> None:
        """Note that a block was used again after `gap_s` seconds; the oldest gap leaves a full window. O(1).

        Raises ValueError for a gap that is negative or not finite.
        """
        if not 0 <= gap_s < math.inf:
            raise ValueError(f"a reuse gap of {gap_s} s: must be finite and not negative")
        if len(self._gaps_ns) == self._gaps_ns.maxlen:
            self._sum_ns -= self._gaps_ns[0]
        gap_ns = round(gap_s * _NS)
        self._gaps_ns.append(gap_ns)
        self._sum_ns += gap_ns

    @property
    def mean_s(self) -> float | None:
        """The mean gap in seconds, None before anything was observed."""
        return self._sum_ns / len(self._gaps_ns) / _NS if self._gaps_ns else None


class LambdaController:
    """λ that follows the mean of the latest reuse gaps (paper, Online Lifespan Setting), which it adds to `gaps`.

    It stays between 1/`limit` and `limit`; `limit` is at least 1.
    """

    def __init__(self, frequency: Frequency, gaps: LifespanEstimator, limit: float) -> None:
        self._frequency = frequency
        self._limit = limit
        self._gaps = gaps

    def observe(self, gap_s: float) -> float:
        """Return λ from now on, after one more gap."""
        self._gaps.observe(gap_s)
        assert self._gaps.mean_s is not None
        return lifespan_weight(self._frequency, self._gaps.mean_s, self._limit)


def lifespan_weight(frequency: Frequency, mean_s: float, limit: float) -> float:
    """Return λ, with which the frequency's branches meet at `mean_s`, not its lifespan, as far as the limit allows."""
    # The logarithm: λ itself overflows for means far beyond the lifespan.
    log_weight = (mean_s - frequency.tau0_s) / frequency.beta_s - mean_s / frequency.alpha_s
    return math.exp(min(max(log_weight, math.log(1 / limit)), math.log(limit)))
