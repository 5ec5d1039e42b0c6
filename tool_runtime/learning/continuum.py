"""Continuum's rules for how long to keep a job's KV cache after a turn, as released and as published.

With X the gap until the job's next request, P(τ) = P(X ≤ τ), and all terms in seconds of latency:

- `ContinuumCode`: the rule that Continuum released (github.com/Hanchenli/vllm-continuum, estimate_with_func.py): 2 s if
  the tool's mean gap is at most 2 s, else nothing. A tool never seen has mean 0.
- `ContinuumPaper`: Continuum (arXiv 2511.02230), §4.1: argmax over τ of P(τ)·B − τ with B = T·η + PrefillReload, P by
  the stages of §4.2, T the mean queueing delay of requests that had been evicted.
"""

from __future__ import annotations

import math

import numpy as np

from tool_runtime.learning.tool_key import HUMAN
from tool_runtime.learning.ttl import RELEASE, Floats, Hold, Situation

# Continuum as released.
RELEASED_TTL_S = 2.0
# Continuum, §4.2: K, and the exponential that stands in before K samples. The paper gives no number for its T_default;
# an exponential of mean 1 s is what the stage's "same model" is solved with here.
PAPER_COLD_SAMPLES = 100
PAPER_COLD_MEAN_S = 1.0


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
