"""agentcache's scheduler that also writes down its steps and requests, to compare an engine with its simulation.

    STEP_LOG=steps.jsonl PYTHONPATH=benchmarks agentcache replay bfcl --policy vllm --model shape:llama-3.1-8b \
      --jobs 80 --rate 1.3 --kv-tokens 500000 --out runs/served -- --scheduler-cls logged_scheduler.LoggedScheduler

`STEP_LOG` is a file that lines of JSON are appended to, of three kinds; seconds are those of the monotonic clock:

    ["step", number, scheduled_s, [decodes, keys of decodes], [[tokens, context] of each prefill]]
    ["end", number of the step, seconds when its tokens were there, [ids of the requests that it ended]]
    ["request", added_s, id, prompt tokens, session, requests that are running]

benchmarks/served_steps.py reads it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from agentcache.engine.scheduler import AgentScheduler

# Lines are kept until there are so many, or the engine stops.
LINES = 1000


class LoggedScheduler(AgentScheduler):
    """Writing a step takes some 20 us of the core's time, which the GPU's steps hide."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._path = Path(os.environ["STEP_LOG"])
        self._lines: list[str] = []
        self._steps = 0
        # By identity of the scheduler's output.
        self._numbers: dict[int, int] = {}
        super().__init__(*args, **kwargs)

    def add_request(self, request: Request) -> None:
        now_s, session = time.monotonic(), request.session_id
        self._note("request", now_s, request.request_id, request.num_prompt_tokens, session, len(self.running))
        super().add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        output = super().schedule(throttle_prefills)
        if output.num_scheduled_tokens:
            self._steps += 1
            self._numbers[id(output)] = self._steps
            self._note("step", self._steps, time.monotonic(), *self._describe(output))
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        ended_s = time.monotonic()
        by_client = super().update_from_output(scheduler_output, model_runner_output)
        if (number := self._numbers.pop(id(scheduler_output), None)) is not None:
            replies = (reply for outputs in by_client.values() for reply in outputs.outputs)
            self._note("end", number, ended_s, [reply.request_id for reply in replies if reply.finished])
        return by_client

    def shutdown(self) -> None:
        self._flush()
        super().shutdown()

    def _describe(self, output: SchedulerOutput) -> tuple[list[int], list[list[int]]]:
        decodes, keys, prefills = 0, 0, []
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = self.requests[request_id]
            # vLLM has counted the scheduled tokens as computed already.
            context = request.num_computed_tokens - tokens
            if tokens > 1 or context < request.num_prompt_tokens:
                prefills.append([tokens, context])
            else:
                decodes, keys = decodes + 1, keys + context
        return [decodes, keys], prefills

    def _note(self, *line: Any) -> None:
        self._lines.append(json.dumps(line))
        if len(self._lines) >= LINES:
            self._flush()

    def _flush(self) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in self._lines)
        self._lines.clear()
