"""Runs points on an engine, and records what each step computed and how long it took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from agentcache.errors import IntegrityError
from agentcache.policy.cost import PrefillBatch
from agentcache.policy.step_cost import Row
from agentcache.policy.step_fit import MeasuredStep
from agentcache.profile.bench_engine import BenchEngine, Timing
from agentcache.profile.points import BatchPoint, Limits, Point, PrefillPoint

# The launches of the first two may still run behind those of another kind; after the last comes another kind again.
_LEAD, _TRAIL = 2, 1
_AVERAGED = 4
SERIES_STEPS = _LEAD + _AVERAGED + _TRAIL


def average_series(steps: Sequence[MeasuredStep], belongs: Callable[[MeasuredStep], bool]) -> MeasuredStep:
    """Average the inner steps of a series into one step; `steps` are all that ran, in order.

    Raises IntegrityError when too few that belong followed each other; `SERIES_STEPS` are enough.
    """
    kinds = [belongs(step) for step in steps]
    inner = [steps[i] for i in range(_LEAD, len(steps) - _TRAIL) if all(kinds[i - _LEAD : i + _TRAIL + 1])]
    if not inner:
        raise IntegrityError(f"of {len(steps)} steps, {sum(kinds)} had the rows asked for, and too few in a row")
    return MeasuredStep(inner[len(inner) // 2].rows, fmean(step.seconds for step in inner))


# Any id that the model and its tokenizer know will do.
_TOKEN_IDS = 4096
_REPEATS = 3
# Prefills that take longer are measured once: their noise is small beside them.
_LONG_S = 0.25
# Room for the tokens that a decode gets while others are prepared and measured.
_DECODE_TOKENS = 400
_RECOMPUTATIONS = 2


@dataclass(frozen=True, slots=True)
class Sample:
    """A point measured: its steps, and for a prefill also the whole."""

    point: Point
    steps: tuple[MeasuredStep, ...]
    batch: PrefillBatch | None = None


class Measurer:
    """Owns the prompts. Cached parts come from one long prompt, and what must be computed is new every time."""

    def __init__(self, bench: BenchEngine, limits: Limits, seed: int) -> None:
        self._bench = bench
        self._limits = limits
        self._seed = seed
        self._random = np.random.default_rng(seed)
        self._long = self._fresh(limits.max_tokens - 1)
        self._contexts: list[list[int]] = []

    def prepare(self) -> None:
        """Cache the long prompt, and run each kind once: kernels are compiled and buffers made at their first use."""
        self._bench.cache(self._long)
        block = self._limits.block_size
        for point in (PrefillPoint(0, 1, 0, 0), PrefillPoint(block, 2 * block, 2 * block, block)):
            self._time_prefill(point)
        self._measure_batch(BatchPoint(2, block, ()))

    def measure(self, point: Point) -> Sample:
        """Measure one point on the engine."""
        return self._measure_prefill(point) if isinstance(point, PrefillPoint) else self._measure_batch(point)

    def _measure_prefill(self, point: PrefillPoint) -> Sample:
        timings = [self._time_prefill(point)]
        if timings[0].steps_s < _LONG_S:
            timings += [self._time_prefill(point) for _ in range(_REPEATS - 1)]
        middle = sorted(timings, key=lambda timing: timing.steps_s)[len(timings) // 2]
        return Sample(point, middle.steps, PrefillBatch(*point, middle.steps_s))

    def _time_prefill(self, point: PrefillPoint) -> Timing:
        """Time a prefill. Raises IntegrityError when the engine does not compute just q1 and q2."""
        l1, q1, l2, q2 = point
        cached = self._long[: l1 + q1 + l2]
        for _ in range(_RECOMPUTATIONS):
            if l2:
                self._bench.keep_only(cached, [(0, l1), (l1 + q1, len(cached))])
                timing = self._bench.time_prefill([*cached, *self._fresh(q2)])
            else:
                timing = self._bench.time_prefill([*cached[:l1], *self._fresh(q1 + q2)])
            computed = sum(row.query for step in timing.steps for row in step.rows)
            if computed == q1 + q2:
                return timing
            # Room was needed, and the long prompt made it.
            self._bench.cache(self._long)
        raise IntegrityError(f"{point}: the engine computed {computed} tokens, not {q1 + q2}")

    def _measure_batch(self, point: BatchPoint) -> Sample:
        bench = self._bench
        # The points before may have taken its room.
        bench.cache(self._long)
        ids = [bench.add([*self._context(i, point.context), *self._fresh(1)], _DECODE_TOKENS) for i in range(point[0])]
        bench.step_until(*ids)
        bench.log.take()
        for _ in range(SERIES_STEPS):
            bench.step()
        decode = average_series(bench.log.take(), lambda step: len(step.rows) == point.decodes)
        mixed = [self._measure_mixed(prefill, point.decodes) for prefill in point.prefills]
        bench.abort(ids)
        bench.settle()
        return Sample(point, (decode, *mixed))

    def _measure_mixed(self, prefill: Row, decodes: int) -> MeasuredStep:
        """Measure prefill beside decodes that run: several such prompts, of which a step has room for one."""
        bench = self._bench
        bench.limit_step(decodes + prefill.query)
        prompts = [[*self._long[: prefill.context], *self._fresh(prefill.query)] for _ in range(SERIES_STEPS)]
        bench.step_until(*[bench.add(prompt, 1) for prompt in prompts])
        bench.limit_step(None)
        return average_series(bench.log.take(), lambda step: len(step.rows) == decodes + 1 and prefill in step.rows)

    def _context(self, index: int, tokens: int) -> list[int]:
        """Make one decode's context: no two share a block, or the GPU's own caches would make attention look fast."""
        while len(self._contexts) <= index:
            own = np.random.default_rng([self._seed, len(self._contexts)])
            self._contexts.append(own.integers(1, _TOKEN_IDS, self._limits.max_tokens // 2).tolist())
        return self._contexts[index][:tokens]

    def _fresh(self, tokens: int) -> list[int]:
        new: list[int] = self._random.integers(1, _TOKEN_IDS, tokens).tolist()
        return new
