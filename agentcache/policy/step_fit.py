"""Fits a step cost to measured steps, by least squares over relative errors with coefficients not below 0.

Relative, because a decode step of 5 ms matters to a simulation as much as a prefill step of 500 ms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentcache.policy.step_cost import Row, StepCost

# What is fitted. `token_link_s` stays 0: between GPUs, too, a token's transfer looks like more of `token_s`.
COEFFICIENTS = ("overhead_s", "weights_read_s", "token_s", "head_s", "pair_s", "kv_read_s", "prefill_overhead_s")
OVERLAPS = (1.0, 1.25, 1.5, 2.0, 3.0, 5.0, math.inf)
_ITERATIONS = 60
_STRIDES = (1.0, 0.5, 0.25, 0.1, 0.03)
_READ_SHARES = (0.25, 0.5, 0.75)

FloatArray = NDArray[np.float64]


class MeasuredStep(NamedTuple):
    """The rows of one engine step, and how long it took."""

    rows: tuple[Row, ...]
    seconds: float


class StepResidual(NamedTuple):
    """Measured minus predicted seconds of one step."""

    step: MeasuredStep
    seconds: float

    @property
    def share(self) -> float:
        """The seconds as a share of those measured."""
        return self.seconds / self.step.seconds


@dataclass(frozen=True, slots=True)
class FittedStepCost:
    """`residuals` has every step, the worst share first. `r_squared` is of the seconds."""

    step_cost: StepCost
    r_squared: float
    residuals: tuple[StepResidual, ...]


def fit_step_cost(steps: Sequence[MeasuredStep]) -> FittedStepCost:
    """Find the coefficients and overlap that predict the steps best. Of several sizes, more steps than coefficients."""
    seconds = np.array([step.seconds for step in steps])
    variation = float(np.sum((seconds - seconds.mean()) ** 2))
    overlap, coefficients = _Fit(steps).run()
    values: dict[str, Any] = dict(zip(COEFFICIENTS, map(float, coefficients), strict=True))
    cost = StepCost(**values, token_link_s=0.0, overlap=None if math.isinf(overlap) else overlap)
    residuals = [StepResidual(step, step.seconds - cost.step_s(step.rows)) for step in steps]
    return FittedStepCost(
        step_cost=cost,
        r_squared=1 - sum(residual.seconds**2 for residual in residuals) / variation,
        residuals=tuple(sorted(residuals, key=lambda residual: -abs(residual.share))),
    )


class _Fit:
    """The steps as arrays, and the search.

    The prediction is convex and homogeneous in the coefficients: at any point it equals its gradient times them. So
    each round is a linear fit to the gradients of the round before.
    """

    def __init__(self, steps: Sequence[MeasuredStep]) -> None:
        self._seconds = np.array([step.seconds for step in steps])
        self._tokens = np.array([sum(row.query for row in step.rows) for step in steps], dtype=float)
        self._rows = np.array([len(step.rows) for step in steps], dtype=float)
        # Of all rows of all steps, in order, and where each step's begin.
        self._pairs = np.array([row.pairs for step in steps for row in step.rows])
        self._keys = np.array([row.keys for step in steps for row in step.rows], dtype=float)
        self._starts = np.cumsum([0, *(len(step.rows) for step in steps[:-1])])
        # None can be larger: each part alone takes no longer than the step. Twice, because measurements are noisy.
        self._bounds = 2 / self._gradients(np.ones(len(COEFFICIENTS)), 1.0).max(axis=0)

    def run(self) -> tuple[float, FloatArray]:
        """Find the best overlap, inf for entire, and its coefficients."""
        candidates = [
            (overlap, self._descend(start, overlap)) for overlap in OVERLAPS for start in map(self._start, _READ_SHARES)
        ]
        return min(candidates, key=lambda candidate: self._error(candidate[1], candidate[0]))

    def _start(self, read_share: float) -> FloatArray:
        """Fit linearly, which cannot tell overhead from the read of the weights, and move all away from 0.

        A part that takes no time loses to its other part wherever they overlap, and would never come back.
        """
        start: FloatArray = np.maximum(self._solve(np.ones(len(COEFFICIENTS)), 1.0), self._bounds / 50)
        fixed = start[0] + start[1]
        start[:2] = (1 - read_share) * fixed, read_share * fixed
        return start

    def _descend(self, coefficients: FloatArray, overlap: float) -> FloatArray:
        error = self._error(coefficients, overlap)
        for _ in range(_ITERATIONS):
            target = self._solve(coefficients, overlap)
            # Whole ways may swing between two assignments of compute and memory.
            tried = [coefficients + share * (target - coefficients) for share in _STRIDES]
            errors = [self._error(each, overlap) for each in tried]
            if min(errors) > error * (1 - 1e-9):
                break
            error = min(errors)
            coefficients = tried[errors.index(error)]
        return coefficients

    def _solve(self, coefficients: FloatArray, overlap: float) -> FloatArray:
        solution: FloatArray = np.minimum(solve_non_negative(self._gradients(coefficients, overlap)), self._bounds)
        return solution

    def _error(self, coefficients: FloatArray, overlap: float) -> float:
        return float(np.sum((self._gradients(coefficients, overlap) @ coefficients - 1) ** 2))

    def _gradients(self, coefficients: FloatArray, overlap: float) -> FloatArray:
        """Return the gradients per second that was measured: one row a step, one column a coefficient."""
        _, weights_read, token, head, pair, kv_read, _ = coefficients
        read, compute = _shares(
            np.full_like(self._tokens, weights_read), self._tokens * token + self._rows * head, overlap
        )
        computed, fetched = _shares(self._pairs * pair, self._keys * kv_read, overlap)
        pairs = np.add.reduceat(computed * self._pairs, self._starts)
        keys = np.add.reduceat(fetched * self._keys, self._starts)
        fixed, prefills = np.ones_like(self._tokens), (self._tokens > self._rows).astype(float)
        columns = [fixed, read, compute * self._tokens, compute * self._rows, pairs, keys, prefills]
        gradients: FloatArray = np.stack(columns, axis=1) / self._seconds[:, None]
        return gradients


def _shares(one_s: FloatArray, other_s: FloatArray, overlap: float) -> tuple[FloatArray, FloatArray]:
    """Return the derivatives of both joined: how much of either counts."""
    if overlap == 1:
        return np.ones_like(one_s), np.ones_like(other_s)
    longer = np.maximum(one_s, other_s)
    # Where neither takes time, both count half.
    one, other = (np.divide(part, longer, out=np.ones_like(part), where=longer > 0) for part in (one_s, other_s))
    if math.isinf(overlap):
        first: FloatArray = (one_s > other_s).astype(float)
        return first, 1 - first
    whole = (one**overlap + other**overlap) ** (1 / overlap - 1)
    return one ** (overlap - 1) * whole, other ** (overlap - 1) * whole


def solve_non_negative(columns: FloatArray) -> FloatArray:
    """Solve columns @ x = 1 for x >= 0 by least squares: the best of the solutions on every subset of the columns."""
    scales = np.where((largest := np.abs(columns).max(axis=0)) > 0, largest, 1.0)
    scaled = columns / scales
    gram, projection = scaled.T @ scaled, scaled.sum(axis=0)
    best, best_gain = np.zeros(columns.shape[1]), 0.0
    for subset in _subsets(columns.shape[1]):
        part, *_ = np.linalg.lstsq(gram[np.ix_(subset, subset)], projection[subset], rcond=None)
        # What the squares' sum falls by.
        gain = float(2 * part @ projection[subset] - part @ gram[np.ix_(subset, subset)] @ part)
        if (part >= 0).all() and gain > best_gain:
            best, best_gain = np.zeros(columns.shape[1]), gain
            best[subset] = part
    solution: FloatArray = best / scales
    return solution


def _subsets(count: int) -> list[list[int]]:
    return [list(each) for size in range(1, count + 1) for each in itertools.combinations(range(count), size)]
