"""When the jobs of a run arrive."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np

from agentcache.errors import InputError

ArrivalKind = Literal["poisson", "gamma", "even", "at-once"]


def draw_arrivals(kind: ArrivalKind, jobs: int, rate: float, cv: float, seed: int) -> list[float]:
    """Draw arrival times in seconds, sorted, the first at 0.

    `rate` is jobs per second. `cv` is the coefficient of variation of the gaps between "gamma" arrivals: 1 is
    Poisson, more is burstier. "even" has equal gaps; "at-once" uses neither. Raises InputError for values that cannot
    be drawn from.
    """
    if kind not in get_args(ArrivalKind):
        raise InputError(f"--arrival {kind}: give one of {', '.join(get_args(ArrivalKind))}")
    if jobs < 1:
        raise InputError(f"--jobs {jobs}: give at least 1")
    if kind == "at-once":
        return [0.0] * jobs
    _check_positive("--rate", rate, "jobs per second")
    if kind == "even":
        return [number / rate for number in range(jobs)]
    rng = np.random.default_rng(seed)
    if kind == "poisson":
        gaps = rng.exponential(1 / rate, size=jobs - 1)
    else:
        _check_positive("--cv", cv, "the coefficient of variation of the gaps")
        gaps = rng.gamma(shape=1 / cv**2, scale=cv**2 / rate, size=jobs - 1)
    return [0.0, *np.cumsum(gaps).tolist()]


def _check_positive(flag: str, value: float, meaning: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{flag} {value:g}: give a number above 0, {meaning}")
