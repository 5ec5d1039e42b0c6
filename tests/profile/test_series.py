"""What is noted of steps whose launches run ahead of the GPU, and what it takes to be right."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from agentcache.errors import IntegrityError
from agentcache.policy.step_cost import Row
from agentcache.policy.step_fit import MeasuredStep
from agentcache.profile.measurer import SERIES_STEPS, average_series
from agentcache.profile.step_log import StepLog


class Kind(NamedTuple):
    """`gpu_s` on the GPU, which begins with the launch, and `launch_s` of the host."""

    tokens: int
    gpu_s: float
    launch_s: float


DECODE = Kind(tokens=1, gpu_s=0.005, launch_s=0.001)


class Scheduler:
    """vLLM's loop: launch the next step, then wait for the end of the one before and note it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.requests = {"a": SimpleNamespace(num_computed_tokens=0)}
        self._next = DECODE
        self.log = StepLog(lambda: self.now_s)

    def schedule(self) -> Any:
        output: Any = SimpleNamespace(num_scheduled_tokens={"a": self._next.tokens})
        self.log.note_start(output, cast(Any, self.requests), self.now_s)
        return output

    def run(self, kinds: Sequence[Kind]) -> list[MeasuredStep]:
        gpu_free_s = 0.0
        under_way: deque[tuple[Any, float]] = deque()
        for kind in kinds:
            self._next = kind
            output = self.schedule()
            launched_s = self.now_s
            self.now_s += kind.launch_s
            gpu_free_s = max(self.now_s, max(launched_s, gpu_free_s) + kind.gpu_s)
            under_way.append((output, gpu_free_s))
            if len(under_way) == 2:
                done, ended_s = under_way.popleft()
                self.now_s = max(self.now_s, ended_s)
                self.log.note_end(done)
        return self.log.take()


def is_prefill(step: MeasuredStep) -> bool:
    return step.rows[0].query > 1


@pytest.mark.parametrize(("gpu_s", "launch_s"), [(0.007, 0.0065), (0.024, 0.018), (0.006, 0.009), (0.2, 0.018)])
def test_a_series_is_right_whoever_sets_the_pace(gpu_s: float, launch_s: float) -> None:
    prefill = Kind(tokens=64, gpu_s=gpu_s, launch_s=launch_s)
    steps = Scheduler().run([*[DECODE] * 5, *[prefill] * SERIES_STEPS, *[DECODE] * 5])
    assert average_series(steps, is_prefill).seconds == pytest.approx(max(gpu_s, launch_s), rel=0.03)
    assert average_series(steps[:5], lambda step: not is_prefill(step)).seconds == pytest.approx(0.005)


def test_a_single_step_between_shorter_ones_seems_too_short() -> None:
    prefill = Kind(tokens=64, gpu_s=0.024, launch_s=0.018)
    (alone,) = filter(is_prefill, Scheduler().run([*[DECODE] * 5, prefill, *[DECODE] * 5]))
    assert alone.seconds == pytest.approx(0.024 - (prefill.launch_s - DECODE.gpu_s), rel=0.01)


def test_the_ends_of_a_series_and_steps_apart_do_not_count() -> None:
    def step(query: int, seconds: float) -> MeasuredStep:
        return MeasuredStep((Row(query, 0),), seconds)

    series = [step(8, seconds) for seconds in (9.0, 9.0, 1.0, 2.0, 3.0, 4.0, 9.0)]
    assert len(series) == SERIES_STEPS
    assert average_series([step(1, 5.0), *series, step(1, 5.0)], is_prefill) == step(8, 2.5)
    with pytest.raises(IntegrityError, match="of 9 steps, 6 had the rows asked for, and too few in a row"):
        average_series([*series[:3], step(1, 5.0), *series[:3], *[step(1, 5.0)] * 2], is_prefill)
