"""A GPU whose steps are counted by hand, and small jobs that run on it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from agentcache.jobs.recorded_job import PromptWriter, RecordedJob, TextJob, record_text
from agentcache.jobs.tokenizer import LocalTokenizer
from agentcache.policy.step_cost import Row, StepCost
from agentcache.report.events import EventWriter, read_events
from agentcache.report.policy_run import PolicyRun, group_by_policy
from agentcache.run.display import ReplayDisplay
from agentcache.sim.clock import VirtualClock
from agentcache.sim.delays import FrontEnd
from agentcache.sim.engine import SimulatedEngine
from agentcache.sim.engine_shape import EngineShape
from agentcache.sim.runner import Future, SimulationRunner
from tool_runtime.agent.job import Job, ToolCall, ToolResult, Turn

TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}
_SHAPE = {"cache_tokens": 16_000, "block_size": 16, "max_num_batched_tokens": 8192, "max_num_seqs": 1024}


class ConstantGpu:
    """Every step takes as long as every other; `batches` are those it was asked for."""

    def __init__(self, step_s: float = 1.0) -> None:
        self.batches: list[list[Row]] = []
        self._step_s = step_s

    def step_s(self, rows: Sequence[Row]) -> float:
        self.batches.append(list(rows))
        return self._step_s if rows else 0.0


def make_engine(model_path: str, policy: str = "lru", gpu: StepCost | None = None, **shape: Any) -> SimulatedEngine:
    whole = EngineShape(model_path=model_path, **{**_SHAPE, **shape})
    return SimulatedEngine(whole, policy, gpu or ConstantGpu(), VirtualClock())


def make_turn(text: str, *durations_s: float) -> Turn:
    """A reply with one call of `look` per duration."""
    calls = tuple(ToolCall("look", f'{{"at": {number}}}') for number in range(len(durations_s)))
    return Turn(text, calls, tuple(ToolResult(f"result {number}", s) for number, s in enumerate(durations_s)))


def record(tokenizer: LocalTokenizer, job_id: str, arrival_s: float, *turns: Turn) -> TextJob:
    job = Job(job_id, ({"role": "user", "content": f"Job {job_id}?"},), (TOOL,), turns, arrival_s)
    return record_text([job], tokenizer)[0]


def run_jobs(
    model_path: str,
    jobs: Sequence[RecordedJob],
    out: Path,
    gpu: ConstantGpu,
    *,
    future: Future | None = None,
    front_end: FrontEnd | None = None,
) -> PolicyRun:
    engine = make_engine(model_path, "lru", gpu)
    prompts = PromptWriter(LocalTokenizer(model_path))
    with EventWriter(out) as writer, ReplayDisplay("lru", len(jobs), Console(file=io.StringIO())) as display:
        runner = SimulationRunner(
            "lru", [engine], prompts=prompts, writer=writer, display=display, future=future, front_end=front_end
        )
        runner.run(jobs)
    return group_by_policy(read_events(out))["lru"]
