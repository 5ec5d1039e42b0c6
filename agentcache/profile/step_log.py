"""Times what every step of a scheduler computes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cached_property

from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.vllm.types import EngineCoreOutputs, ModelRunnerOutput, Request, SchedulerOutput
from agentcache.policy.step_cost import Row
from agentcache.policy.step_fit import MeasuredStep


class StepLog:
    """Is told when steps begin and end.

    A step lasts from its scheduling, or from the end of the step before if that is later, until its tokens are there.
    With async scheduling the next step is scheduled while this one runs, and waits for its end. That end is noted once
    the next step is launched: of single steps it holds only where launches are short beside them, and of several of a
    kind in a row their mean; see agentcache.profile.series.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        # By identity of the scheduler's output: rows and start of the steps under way.
        self._under_way: dict[int, tuple[tuple[Row, ...], float]] = {}
        self._ended_s = float("-inf")
        self._steps: list[MeasuredStep] = []

    def take(self) -> list[MeasuredStep]:
        """Take the steps that ended since the last call."""
        steps, self._steps = self._steps, []
        return steps

    def note_start(self, output: SchedulerOutput, requests: Mapping[str, Request], started_s: float) -> None:
        """Note a step that has been scheduled since `started_s`."""
        if output.num_scheduled_tokens:
            # vLLM has counted the scheduled tokens as computed already.
            rows = tuple(
                Row(tokens, requests[request_id].num_computed_tokens - tokens)
                for request_id, tokens in output.num_scheduled_tokens.items()
            )
            self._under_way[id(output)] = rows, started_s

    def note_end(self, output: SchedulerOutput) -> None:
        """Note that the step's tokens are there."""
        ended_s = self.clock()
        if (step := self._under_way.pop(id(output), None)) is not None:
            rows, started_s = step
            self._steps.append(MeasuredStep(rows, ended_s - max(started_s, self._ended_s)))
            self._ended_s = ended_s


class LoggingScheduler(AgentScheduler):
    """Our scheduler, with a log of its steps. Measurements name it as vLLM's `scheduler_cls`."""

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Schedule a step, and note its start."""
        started_s = self.step_log.clock()
        output = super().schedule(throttle_prefills)
        self.step_log.note_start(output, self.requests, started_s)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Note the end of a step, and give its tokens to its requests."""
        self.step_log.note_end(scheduler_output)
        return super().update_from_output(scheduler_output, model_runner_output)

    @cached_property
    def step_log(self) -> StepLog:
        """The log of the steps from the first on."""
        return StepLog()
