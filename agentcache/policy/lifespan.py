"""Estimates the lifespan that blocks have lately, and moves the frequency's turning point there by λ."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from agentcache.errors import InputError

# agentcache/tuning.py says where they come from.
DEFAULT_REUSE_PROBABILITY = 0.5
DEFAULT_SLOPE_RATIO = 40.0


@dataclass(frozen=True, slots=True)
class Frequency:
    """Two exponentials: a slow one within the lifespan, a steep one after it.

    Both are exponential because only then do two blocks keep their order as time passes, so that a heap can hold them.
    """

    alpha_s: float
    beta_s: float
    tau0_s: float

    @classmethod
    def from_turning_point(
        cls,
        lifespan_s: float,
        reuse_probability: float = DEFAULT_REUSE_PROBABILITY,
        slope_ratio: float = DEFAULT_SLOPE_RATIO,
    ) -> Frequency:
        """Make the curve that turns at `lifespan_s`: `reuse_probability` there, `slope_ratio` times as steep after.

        Raises InputError for values that leave no such curve.
        """
        if not 0 < lifespan_s < math.inf:
            raise InputError(f"lifespan_s {lifespan_s}: must be a positive number of seconds")
        if not 0 < reuse_probability < 1:
            raise InputError(f"reuse_probability {reuse_probability}: must lie between 0 and 1, both excluded")
        if not 1 < slope_ratio < math.inf:
            raise InputError(f"slope_ratio {slope_ratio}: must be greater than 1")
        alpha_s = -lifespan_s / math.log(reuse_probability)
        return cls(alpha_s, alpha_s / slope_ratio, lifespan_s * (1 - 1 / slope_ratio))


# Assumed; see `lifespan_window` in agentcache/tuning.py.
DEFAULT_WINDOW = 1000
_NS = 1_000_000_000


class LifespanEstimator:
    """Mean and percentiles of the last `window` reuse gaps."""

    def __init__(self, window: int = DEFAULT_WINDOW) -> None:
        if window < 1:
            raise InputError(f"lifespan_window {window}: must be at least 1 gap")
        # Whole nanoseconds: the running sum stays exact however many gaps come and go.
        self._gaps_ns: deque[int] = deque(maxlen=window)
        self._sum_ns = 0

    def __len__(self) -> int:
        """Return how many gaps the window holds."""
        return len(self._gaps_ns)

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


@dataclass(frozen=True, slots=True)
class LambdaBounds:
    """Limits of λ. 1, its value before anything was observed, lies within."""

    low: float = 1e-6
    high: float = 1e6

    def __post_init__(self) -> None:
        """Raise InputError for bounds that are not on both sides of 1."""
        if not 0 < self.low <= 1:
            raise InputError(f"lambda_bounds.low {self.low}: must be above 0 and at most 1")
        if not 1 <= self.high < math.inf:
            raise InputError(f"lambda_bounds.high {self.high}: must be at least 1 and finite")


DEFAULT_LAMBDA_BOUNDS = LambdaBounds()


def log_lifespan_weight(
    frequency: Frequency, mean_s: float | None, bounds: LambdaBounds = DEFAULT_LAMBDA_BOUNDS
) -> float:
    """Return ln λ, with which the frequency's branches meet at `mean_s`, not its lifespan, as far as bounds allow.

    0 before anything was observed. A logarithm, because λ itself overflows for means far beyond the lifespan.
    """
    if mean_s is None:
        return 0.0
    log_weight = (mean_s - frequency.tau0_s) / frequency.beta_s - mean_s / frequency.alpha_s
    return min(max(log_weight, math.log(bounds.low)), math.log(bounds.high))


class LambdaController:
    """λ that follows the mean of the latest reuse gaps (paper, Online Lifespan Setting)."""

    def __init__(self, frequency: Frequency, window: int, bounds: LambdaBounds = DEFAULT_LAMBDA_BOUNDS) -> None:
        self._frequency = frequency
        self._bounds = bounds
        self._gaps = LifespanEstimator(window)

    def observe(self, gap_s: float) -> float:
        """Return λ from now on, after one more gap."""
        self._gaps.observe(gap_s)
        return lifespan_weight(self._frequency, self._gaps.mean_s, self._bounds)


def lifespan_weight(frequency: Frequency, mean_s: float | None, bounds: LambdaBounds = DEFAULT_LAMBDA_BOUNDS) -> float:
    """Return λ itself, the factor of the steep branch."""
    return math.exp(log_lifespan_weight(frequency, mean_s, bounds))
