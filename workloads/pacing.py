"""Draws the times that a recording does not have: arrivals of jobs, and seconds of tool calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np

from agentcache.errors import InputError

# Draws the seconds that one tool call takes.
ToolLatency = Callable[[np.random.Generator], float]

# BFCL web search. Source: Continuum, arXiv 2511.02230; it gives the moments only, the log-normal is our choice.
BFCL_MEAN_S = 1.923
BFCL_DEVIATION_S = 2.133

# Claude Code's tools. Source: TraceLab, arXiv 2606.30560 and tracelab.cs.washington.edu (tool_latency_distribution): a
# median of 0.13 s, a mean of 16.8 s; 70 % of calls take less than a second, and less than 1 % of the time; 4.9 % take
# more than a minute, and 92 % of the time. Shares of calls and the seconds up to which they take; between them the
# logarithm is even. The fastest call, the share within 10 s and the slowest call are ours: they give that mean.
TRACELAB_LAW = ((0.0, 0.01), (0.5, 0.13), (0.7, 1.0), (0.94, 10.0), (0.951, 60.0), (1.0, 920.0))

_FORMS = 'give "bfcl", "tracelab", seconds such as "0.5", "lognormal:MEAN,SD" or "exponential:MEAN", in seconds'


def parse_tool_latency(text: str) -> ToolLatency:
    """Read a `--tool-latency`: "bfcl", "tracelab", constant seconds, "lognormal:MEAN,SD" or "exponential:MEAN".

    Moments are seconds. Raises InputError that lists the forms.
    """
    name, colon, rest = text.strip().partition(":")
    if text.strip() == "tracelab":
        return _by_shares(TRACELAB_LAW)
    if not colon:
        return _lognormal(BFCL_MEAN_S, BFCL_DEVIATION_S) if name == "bfcl" else _constant(_read_number(text, name))
    moments = [_read_number(text, part) for part in rest.split(",")]
    if min(moments) <= 0:
        raise InputError(f"--tool-latency {text}: mean and deviation must be above 0; {_FORMS}")
    match name, moments:
        case "lognormal", [mean, deviation]:
            return _lognormal(mean, deviation)
        case "exponential", [mean]:
            return _exponential(mean)
    raise InputError(f"--tool-latency {text}: not a known form; {_FORMS}")


def _read_number(text: str, part: str) -> float:
    try:
        number = float(part)
    except ValueError:
        raise InputError(f"--tool-latency {text}: {part!r} is not a number; {_FORMS}") from None
    if not (math.isfinite(number) and number >= 0):
        raise InputError(f"--tool-latency {text}: {part} is not a time; {_FORMS}")
    return number


def _constant(seconds: float) -> ToolLatency:
    return lambda _rng: seconds


def _lognormal(mean: float, deviation: float) -> ToolLatency:
    variance = math.log1p((deviation / mean) ** 2)
    location = math.log(mean) - variance / 2
    return lambda rng: float(rng.lognormal(location, math.sqrt(variance)))


def _exponential(mean: float) -> ToolLatency:
    return lambda rng: float(rng.exponential(mean))


def _by_shares(law: Sequence[tuple[float, float]]) -> ToolLatency:
    shares, seconds = zip(*law, strict=True)
    logarithms = np.log(seconds)
    return lambda rng: math.exp(np.interp(rng.random(), shares, logarithms))


ArrivalKind = Literal["poisson", "even", "at-once"]


def draw_arrivals(kind: ArrivalKind, jobs: int, rate: float, seed: int) -> list[float]:
    """Draw arrival times in seconds, sorted, the first at 0.

    `rate` is jobs per second. "even" has equal gaps; "at-once" has none. Raises InputError for values that cannot be
    drawn from.
    """
    if kind not in get_args(ArrivalKind):
        raise InputError(f"--arrival {kind}: give one of {', '.join(get_args(ArrivalKind))}")
    if jobs < 1:
        raise InputError(f"--jobs {jobs}: give at least 1")
    if kind == "at-once":
        return [0.0] * jobs
    if not (math.isfinite(rate) and rate > 0):
        raise InputError(f"--rate {rate:g}: give a number above 0, jobs per second")
    if kind == "even":
        return [number / rate for number in range(jobs)]
    gaps = np.random.default_rng(seed).exponential(1 / rate, size=jobs - 1)
    return [0.0, *np.cumsum(gaps).tolist()]
