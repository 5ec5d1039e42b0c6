"""Decides how long to keep a job's KV cache after a turn: three estimators behind one contract.

With X the gap until the job's next request, P(τ) = P(X ≤ τ), and all terms in seconds of latency:

- `ContinuumCode`: the rule that Continuum released (github.com/Hanchenli/vllm-continuum, estimate_with_func.py): 2 s if
  the tool's mean gap is at most 2 s, else nothing. A tool never seen has mean 0.
- `ContinuumPaper`: Continuum (arXiv 2511.02230), §4.1: argmax over τ of P(τ)·B − τ with B = T·η + PrefillReload, P by
  the stages of §4.2, T the mean queueing delay of requests that had been evicted.
- `HazardTtl` (default): argmax over τ of P(τ)·B − price·E[min(X, τ)]. A hold ends when the job returns, so it costs its
  expected length, not τ, and others suffer from it only as far as memory is short. Asked again at age a, it takes all
  chances given X > a: to hold on is worth it while, for some further hold d,
  P(X ≤ a + d | X > a)·B > price·E[min(X − a, d) | X > a]; in the limit, while the hazard exceeds price / B.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tool_runtime.learning.durations import GapHistory
from tool_runtime.learning.survival import Floats
from tool_runtime.learning.tool_key import HUMAN

# Continuum as released.
RELEASED_TTL_S = 2.0
# Continuum, §4.2: K, and the exponential that stands in before K samples. The paper gives no number for its T_default;
# an exponential of mean 1 s is what the stage's "same model" is solved with here.
PAPER_COLD_SAMPLES = 100
PAPER_COLD_MEAN_S = 1.0


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


class ContinuumCode:
    """Continuum as released: it has no notion of value, so all its holds are worth the same."""

    def decide(self, situation: Situation) -> Hold:
        """Hold for what is left of the fixed time; release humans and tools that take longer."""
        history = situation.history
        if history.key == HUMAN or (history.tool_mean_s or 0.0) > RELEASED_TTL_S:
            return RELEASE
        left_s = RELEASED_TTL_S - situation.age_s
        return Hold(left_s, 0.0) if left_s > 0 else RELEASE


class ContinuumPaper:
    """Continuum's model as published. Decided once: later it gives what is left."""

    def decide(self, situation: Situation) -> Hold:
        """Hold for the time that the published model gives; release humans."""
        history = situation.history
        if history.key == HUMAN:
            return RELEASE
        if history.total_count <= PAPER_COLD_SAMPLES:
            benefit_s = situation.evicted_wait_s + situation.prefill_s
            hold = exponential_hold(PAPER_COLD_MEAN_S, benefit_s)
        else:
            benefit_s = situation.evicted_wait_s * situation.memoryfulness + situation.prefill_s
            is_known = history.tool_count > PAPER_COLD_SAMPLES
            hold = empirical_hold(history.tool_samples_s if is_known else history.total_samples_s, benefit_s)
        left_s = hold.ttl_s - situation.age_s
        return Hold(left_s, hold.value_s) if left_s > 0 else RELEASE


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


def exponential_hold(mean_s: float, benefit_s: float) -> Hold:
    """Solve Continuum, §4.1 for exponential gaps: P(τ)·B − τ is greatest at τ = μ·ln(B / μ), if B > μ."""
    if benefit_s <= mean_s:
        return RELEASE
    ttl_s = mean_s * math.log(benefit_s / mean_s)
    return Hold(ttl_s, benefit_s - mean_s - ttl_s)


def empirical_hold(samples_s: Floats, benefit_s: float) -> Hold:
    """Solve Continuum, §4.1 for recorded gaps, ascending: exact, because P(τ)·B − τ only rises at a sample.

    Of equal values the shortest hold; 0 if none is worth more than nothing.
    """
    if not samples_s.size:
        return RELEASE
    shares = np.searchsorted(samples_s, samples_s, side="right") / samples_s.size
    values = shares * benefit_s - samples_s
    best = int(np.argmax(values))
    return Hold(float(samples_s[best]), float(values[best])) if values[best] > 0 else RELEASE


def memoryfulness(job_turns: Sequence[int]) -> float:
    """Return η of Continuum, §4.1: −Corr(k, N − k) over the turns k = 1 … N−1 of finished jobs of N turns each.

    1 where all jobs are of one length, about 0 where they end at random. 0 where nothing is known yet: no job had
    three turns, nor did jobs of two lengths.
    """
    lengths = [turns for turns in job_turns if turns > 1]
    count = sum(turns - 1 for turns in lengths)
    total = sum(turns * (turns - 1) // 2 for turns in lengths)
    squares = sum((turns - 1) * turns * (2 * turns - 1) // 6 for turns in lengths)
    products = sum(turns * (turns * (turns - 1) // 2) for turns in lengths) - squares
    # k and N − k run over the same numbers, so they have one variance.
    variance = count * squares - total * total
    covariance = count * products - total * total
    return -covariance / variance if variance else 0.0
