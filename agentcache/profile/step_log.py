"""What every step of a scheduler computed, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable

from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.vllm.patches import replace
from agentcache.engine.vllm.types import EngineCoreOutputs, ModelRunnerOutput, SchedulerOutput
from agentcache.policy.step_cost import Row
from agentcache.policy.step_fit import MeasuredStep


class StepLog:
    """Listens at a scheduler, from its construction on.

    A step lasts from its scheduling, or from the end of the step before if that is later, until its tokens are there.
    With async scheduling the next step is scheduled while this one runs, and waits for its end. That end is noted once
    the next step is launched: of single steps it holds only where launches are short beside them, and of several of a
    kind in a row their mean; see agentcache.profile.series.
    """

    def __init__(self, scheduler: AgentScheduler, clock: Callable[[], float] = time.perf_counter) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._schedule, self._update = scheduler.schedule, scheduler.update_from_output
        # By identity of the scheduler's output: rows and start of the steps under way.
        self._under_way: dict[int, tuple[tuple[Row, ...], float]] = {}
        self._ended_s = float("-inf")
        self._steps: list[MeasuredStep] = []
        replace(scheduler, "schedule", self._note_start)
        replace(scheduler, "update_from_output", self._note_end)

    def take(self) -> list[MeasuredStep]:
        """Take the steps that ended since the last call."""
        steps, self._steps = self._steps, []
        return steps

    def _note_start(self, throttle_prefills: bool = False) -> SchedulerOutput:
        started_s = self._clock()
        output = self._schedule(throttle_prefills)
        if output.num_scheduled_tokens:
            self._under_way[id(output)] = (self._read_rows(output), started_s)
        return output

    def _note_end(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        ended_s = self._clock()
        if (step := self._under_way.pop(id(scheduler_output), None)) is not None:
            rows, started_s = step
            self._steps.append(MeasuredStep(rows, ended_s - max(started_s, self._ended_s)))
            self._ended_s = ended_s
        return self._update(scheduler_output, model_runner_output)

    def _read_rows(self, output: SchedulerOutput) -> tuple[Row, ...]:
        # vLLM has counted the scheduled tokens as computed already.
        return tuple(
            Row(tokens, self._scheduler.requests[request_id].num_computed_tokens - tokens)
            for request_id, tokens in output.num_scheduled_tokens.items()
        )
