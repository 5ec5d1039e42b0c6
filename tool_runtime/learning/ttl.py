"""Estimates how long a gap may yet last, by a survival curve, and decides how long to keep a job's KV cache meanwhile.

A curve of few gaps is shrunk to a more general one. With X the gap until the job's next request, P(τ) = P(X ≤ τ), and
all terms in seconds of latency, `HazardTtl` takes argmax over τ of P(τ)·B − price·E[min(X, τ)]. A hold ends when the
job returns, so it costs its expected length, not τ, and others suffer from it only as far as memory is short. Asked
again at age a, it takes all chances given X > a: to hold on is worth it while, for some further hold d,
P(X ≤ a + d | X > a)·B > price·E[min(X − a, d) | X > a]; in the limit, while the hazard exceeds price / B.
`continuum.py` has two other estimators.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

# `np.union1d` imports it when it is first called, which would hold up that step of the engine by 60 ms.
import numpy.ma
from numpy.typing import NDArray

from tool_runtime.learning.tool_key import ToolKey

Floats = NDArray[np.float64]

# Where a curve without samples may fall: twenty times a decade. Assumed; wide and fine enough for any tool.
_GRID_S: Floats = np.geomspace(0.01, 1e6, 161)


class SurvivalCurve:
    """P(X > t) of a gap X: a step function of t, in seconds, that falls at `times_s`, all above 0.

    What is left at the last time never returns. A negative age or duration counts as 0.
    """

    def __init__(self, times_s: Floats, hazards: Floats) -> None:
        """Make a curve: `hazards` are the chances to end at each of the ascending `times_s`, given no end before."""
        self.times_s = times_s
        self.hazards = hazards
        self._survival = np.concatenate(([1.0], np.cumprod(1.0 - hazards)))
        steps = np.diff(times_s, prepend=0.0)
        # The area under the curve up to each time: E[min(X, t)].
        self._area = np.concatenate(([0.0], np.cumsum(self._survival[:-1] * steps)))
        self._starts = np.concatenate(([0.0], times_s))

    def survival(self, t_s: float) -> float:
        """Return P(X > t)."""
        return float(self._survival[self.times_s.searchsorted(t_s, side="right")])

    def survivals(self, times_s: Floats) -> Floats:
        """Return P(X > t) at each of these times."""
        return self._survival[self.times_s.searchsorted(times_s, side="right")]

    def returned_within(self, horizon_s: float, age_s: float = 0.0) -> float:
        """Return P(X <= age + horizon | X > age), the hazard of the next `horizon_s` seconds; 0 if none is left."""
        left = self.survival(age_s)
        return 1.0 - self.survival(age_s + max(horizon_s, 0.0)) / left if left > 0 else 0.0

    def quantile(self, q: float) -> float:
        """Find the first time by which a share of at least `q` has returned; infinite if so many never return."""
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile of {q}: must lie between 0 and 1")
        index = int(np.searchsorted(-self._survival, q - 1.0 - 1e-12, side="left"))
        return float(self._starts[index]) if index < len(self._starts) else math.inf

    def best_hold(self, benefit_s: float, price: float, max_s: float, age_s: float = 0.0) -> tuple[float, float]:
        """Find the hold τ from `age_s` on, at most `max_s`, that maximises P(τ)·benefit − price·E[min(X, τ)]; and that.

        Exact: between two times the value only falls, so a time or 0 is best; of equals, the shorter.
        """
        age_s = max(age_s, 0.0)
        left = self.survival(age_s)
        inside = self.times_s[(self.times_s > age_s) & (self.times_s <= age_s + max_s)]
        if left <= 0 or not inside.size:
            return 0.0, 0.0
        first = int(self.times_s.searchsorted(inside[0])) + 1
        survival = self._survival[first : first + inside.size]
        area = self._area[first : first + inside.size] - self._area_to(age_s)
        values = ((left - survival) * benefit_s - price * area) / left
        best = int(np.argmax(values))
        return (float(inside[best]) - age_s, float(values[best])) if values[best] > 0 else (0.0, 0.0)

    def _area_to(self, t_s: float) -> float:
        index = int(self.times_s.searchsorted(t_s, side="right"))
        return float(self._area[index] + self._survival[index] * (t_s - self._starts[index]))


def log_logistic(median_s: float) -> SurvivalCurve:
    """Return 1 / (1 + t / median): a broad curve where no more than the median is known. The form is assumed."""
    survival = 1.0 / (1.0 + np.concatenate(([0.0], _GRID_S)) / median_s)
    return SurvivalCurve(_GRID_S, 1.0 - survival[1:] / survival[:-1])


def shrunk_curve(
    seconds: Floats, returned: NDArray[np.bool_], weights: Floats, prior: SurvivalCurve, strength: float
) -> SurvivalCurve:
    """Return the curve of gaps of which those not `returned` were still out after `seconds` (censored).

    The prior counts as `strength` further gaps, more than 0.

    At every time t the hazard is (events + strength·prior's hazard) / (at risk + strength), the posterior mean under
    a beta process prior (Hjort, Annals of Statistics 18(3), 1990). So the weight between own and prior follows the
    gaps that are still at risk at t, censored ones included; as `strength` goes to 0 it is Kaplan and Meier's estimate.
    """
    if not seconds.size:
        return prior
    times = np.union1d(prior.times_s, seconds[returned])
    # Gaps censored at t are at risk at t: they were still seen waiting then.
    order = np.argsort(seconds)
    at_risk = np.concatenate((np.cumsum(weights[order][::-1])[::-1], [0.0]))[np.searchsorted(seconds[order], times)]
    ended = np.zeros(times.size)
    np.add.at(ended, np.searchsorted(times, seconds[returned]), weights[returned])
    expected = np.zeros(times.size)
    expected[np.searchsorted(times, prior.times_s)] = prior.hazards
    hazards = (ended + strength * expected) / (at_risk + strength)
    return SurvivalCurve(times, np.clip(hazards, 0.0, 1.0))


# What is learned stays finite, also from a file that somebody has written: counts and sums that a float holds exactly.
MAX_COUNT = 2**53
MAX_TOTAL_S = 2.0**53


class GapRecord:
    """The latest samples in a ring, and the count and sum of all returns ever."""

    def __init__(self, max_samples: int) -> None:
        self.count = 0
        self.total_s = 0.0
        self._kept = 0
        self._seconds = np.zeros(max_samples)
        self._at_s = np.zeros(max_samples)
        self._returned = np.zeros(max_samples, dtype=np.bool_)

    def add(self, seconds: float, at_s: float, returned: bool) -> None:
        """Take a sample of a gap, seen at `at_s`: it lasted `seconds`, or longer where it has not `returned`."""
        if returned:
            self.count_returns(1, seconds)
        self.keep(seconds, at_s, returned)

    def count_returns(self, count: int, total_s: float) -> None:
        """Count returns after `total_s` seconds together."""
        self.count = min(self.count + count, MAX_COUNT)
        self.total_s = min(self.total_s + total_s, MAX_TOTAL_S)

    def keep(self, seconds: float, at_s: float, returned: bool) -> None:
        """Take a sample that the count and sum hold already."""
        slot = self._kept % self._seconds.size
        self._seconds[slot], self._at_s[slot], self._returned[slot] = seconds, at_s, returned
        self._kept += 1

    def copy(self) -> GapRecord:
        """Copy the record; what one takes later the other has not."""
        twin = copy.copy(self)
        twin._seconds, twin._at_s, twin._returned = self._seconds.copy(), self._at_s.copy(), self._returned.copy()
        return twin

    def join(self, other: GapRecord) -> GapRecord:
        """Make a record of both, which takes no more samples."""
        joined = GapRecord(0)
        joined.count_returns(self.count + other.count, self.total_s + other.total_s)
        joined._seconds = np.concatenate([self.seconds, other.seconds])
        joined._at_s = np.concatenate([self.at_s, other.at_s])
        joined._returned = np.concatenate([self.returned, other.returned])
        joined._kept = joined.size
        return joined

    @property
    def size(self) -> int:
        """The most samples that it keeps."""
        return int(self._seconds.size)

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing was counted or kept."""
        return not self.count and not self._kept

    @property
    def seconds(self) -> Floats:
        """The seconds of the samples that are kept."""
        return self._seconds[: self._kept]

    @property
    def at_s(self) -> Floats:
        """When each of them was seen."""
        return self._at_s[: self._kept]

    @property
    def returned(self) -> np.typing.NDArray[np.bool_]:
        """Which of them are of gaps that ended; the others lasted longer."""
        return self._returned[: self._kept]

    @property
    def returns_s(self) -> Floats:
        """The seconds of those that ended, ascending."""
        return np.sort(self.seconds[self.returned])

    def state(self, as_of_s: float) -> tuple[int, float, tuple[tuple[float, float, bool], ...]]:
        """Return the count, the sum, and the samples as `RecordState` has them, as old as at `as_of_s`."""
        oldest_first = np.argsort(self.at_s, kind="stable")
        samples = tuple(
            (float(self.seconds[index]), float(as_of_s - self.at_s[index]), bool(self.returned[index]))
            for index in oldest_first
        )
        return self.count, self.total_s, samples


@dataclass(frozen=True, slots=True)
class GapHistory:
    """The records' account of the gap behind one turn.

    `curve` is shrunk from the command over the tool to the pool. Counts and the mean are of all returns ever, the
    samples of the latest, in seconds, ascending; `total_*` is over all tools. `evidence` is the weight of all that
    was observed of tools (or of humans); where it is 0, the curve is an assumption.
    """

    key: ToolKey
    curve: SurvivalCurve
    evidence: float
    tool_count: int
    tool_mean_s: float | None
    tool_samples_s: Floats
    total_count: int
    total_samples_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The facts when a turn has ended, or `age_s` seconds later while its job is away. Times in seconds.

    `loss_s` is what it costs to rebuild what would really be lost, `prefill_s` the prefill of the whole context,
    `evicted_wait_s` the mean wait of evicted requests lately. `price` is what others lose per second of hold
    (`Load.price`): 0 when the cache is not short. `memoryfulness` is η, of `memoryfulness()`.
    """

    history: GapHistory
    age_s: float = 0.0
    loss_s: float = 0.0
    prefill_s: float = 0.0
    evicted_wait_s: float = 0.0
    price: float = 1.0
    memoryfulness: float = 0.0

    def __post_init__(self) -> None:
        """Raise ValueError for a value that is out of its range."""
        for name in ("age_s", "loss_s", "prefill_s", "evicted_wait_s", "price"):
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise ValueError(f"{name} {value}: must be finite and not negative")
        if not -1 <= self.memoryfulness <= 1:
            raise ValueError(f"memoryfulness {self.memoryfulness}: must lie between -1 and 1")


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep the cache for `ttl_s` seconds from now on, 0 to let it go; `value_s` is what that should save."""

    ttl_s: float
    value_s: float


RELEASE = Hold(0.0, 0.0)


class TtlEstimator(Protocol):
    """Decides how long a finished turn's cache is kept. A function of what it is told, without memory."""

    def decide(self, situation: Situation) -> Hold:
        """Decide at age 0 when the turn ends, and at any later age whether to hold on."""
        ...


class HazardTtl:
    """Ours. Holds for at most `max_ttl_s` seconds at a time, and only if the job returns within that by `min_chance`.

    A pin lies above everything that the evictor orders by itself, so holds that mostly end in vain cost more than the
    objective sees. Where the defaults come from is in agentcache/tuning.py.
    """

    def __init__(self, *, max_ttl_s: float = 20.0, min_chance: float = 0.3) -> None:
        if not 0 < max_ttl_s < math.inf:
            raise ValueError(f"max_ttl_s {max_ttl_s}: must be positive and finite")
        if not 0 <= min_chance <= 1:
            raise ValueError(f"min_chance {min_chance}: must be a probability")
        self._max_ttl_s = max_ttl_s
        self._min_chance = min_chance

    def decide(self, situation: Situation) -> Hold:
        """Hold for as long as the objective is best, by the hazard of what is known of the turn's tools."""
        benefit_s = situation.loss_s
        curve, age_s = situation.history.curve, situation.age_s
        chance = curve.returned_within(self._max_ttl_s, age_s)
        if benefit_s <= 0 or chance < self._min_chance:
            return RELEASE
        if situation.price <= 0:
            return Hold(self._max_ttl_s, chance * benefit_s)
        return Hold(*curve.best_hold(benefit_s, situation.price, self._max_ttl_s, age_s))
