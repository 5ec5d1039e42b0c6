"""Simulates cells of a plan, one after the other, in a process of its own."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from agentcache.config_reader import CONFIG_KEY, read_config
from agentcache.errors import AgentCacheError
from agentcache.front_end.placing_client import keeps_jobs_home
from agentcache.jobs.context_job import ContextJob, ContextWriter, find_ordinary_tokens
from agentcache.jobs.recorded_job import PromptWriter
from agentcache.jobs.tokenizer import LocalTokenizer
from agentcache.models.catalog import make_text_model, resolve_model
from agentcache.plan.bounds import Reuse, find_reuse
from agentcache.plan.settings import Cell, Outcome, PlanSettings
from agentcache.policy.gpus import GPUS
from agentcache.policy.presets import PRESETS
from agentcache.report.events import Event, JobEvent, RequestEvent
from agentcache.report.policy_run import find_working_set
from agentcache.run.display import ReplayDisplay
from agentcache.sim.clock import VirtualClock
from agentcache.sim.costs import find_costs, name_costs, name_dtype
from agentcache.sim.engine import SimulatedEngine
from agentcache.sim.engine_shape import EngineShape, make_config
from agentcache.sim.known_hashes import MadeHashes
from agentcache.sim.routing import make_routing
from agentcache.sim.runner import SimulationRunner
from agentcache.sim.settings import (
    DEFAULT_MAX_NUM_BATCHED_TOKENS,
    DEFAULT_MAX_NUM_SEQS,
    DEFAULT_ROUTING,
    VLLM_ROUTING,
    name_model,
)
from tool_runtime.agent.job import Job

_worker: Worker | None = None
_OBJECTS_UNTIL_COLLECTED = 100_000


@dataclass(slots=True)
class _Events:
    """Keeps the events of a run that a plan needs."""

    requests: list[RequestEvent] = field(default_factory=list)
    jobs: list[JobEvent] = field(default_factory=list)

    def write(self, event: Event) -> None:
        if isinstance(event, RequestEvent):
            self.requests.append(event)
        elif isinstance(event, JobEvent):
            self.jobs.append(event)


class Worker:
    """Has loaded model and jobs, whatever the cell."""

    def __init__(self, settings: PlanSettings, jobs: Sequence[Job]) -> None:
        """Make or find the model's folder. Raises InputError."""
        self._settings = settings
        # No text was recorded, so a published config is enough. What was measured may be of no type of transformers.
        is_known = settings.profile is not None or settings.model in PRESETS
        self._path = resolve_model(name_model(settings.model)).path if is_known else make_text_model(settings.model)
        tokenizer = LocalTokenizer(self._path)
        writer = ContextWriter(find_ordinary_tokens(tokenizer))
        self._jobs = [ContextJob(job, writer) for job in jobs]
        self._reuse = find_reuse(jobs, settings.block_size)
        self._prompts = PromptWriter(tokenizer)
        self._hashes: dict[str, MadeHashes] = {}
        costs = settings.model, settings.gpu, settings.tensor_parallel_size, settings.profile
        self._gpu, _ = find_costs(*costs)
        self._cost_knobs = name_costs(*costs)
        self._dtype = name_dtype(*costs)

    def find_max_tokens(self) -> int:
        """Return the longest context that the model takes."""
        length: int = make_config(self._shape(Cell("lru", self._settings.block_size)), "lru").model_config.max_model_len
        return length

    def run(self, cell: Cell) -> Outcome:
        """Simulate the cell."""
        events = _Events()
        try:
            self._simulate(cell, events)
        except AgentCacheError as error:
            return replace(summarise(cell, self._jobs, [], [], self._reuse), problem=str(error))
        return summarise(cell, self._jobs, events.requests, events.jobs, self._reuse)

    def _simulate(self, cell: Cell, events: _Events) -> None:
        shape, clock = self._shape(cell), VirtualClock()
        engines = [
            SimulatedEngine(shape, cell.policy, self._gpu, clock, hashes=self._hashes) for _ in range(cell.engines)
        ]
        routing = make_routing(choose_routing(self._settings, cell.policy), engines) if cell.engines > 1 else None
        with Path(os.devnull).open("w") as nowhere:
            runner = SimulationRunner(
                cell.policy,
                engines,
                prompts=self._prompts,
                writer=events,
                display=ReplayDisplay(cell.policy, len(self._jobs), Console(file=nowhere)),
                routing=routing,
                checks_tokens=False,
            )
            runner.run(self._jobs)

    def _shape(self, cell: Cell) -> EngineShape:
        settings, gpu = self._settings, GPUS.get(self._settings.gpu)
        return EngineShape(
            model_path=self._path,
            cache_tokens=cell.kv_tokens,
            block_size=settings.block_size,
            max_num_batched_tokens=gpu.step_tokens if gpu else DEFAULT_MAX_NUM_BATCHED_TOKENS,
            max_num_seqs=gpu.step_rows if gpu else DEFAULT_MAX_NUM_SEQS,
            tensor_parallel_size=settings.tensor_parallel_size,
            async_scheduling=settings.gpu != "cpu",
            host_tokens=cell.cpu_tokens,
            dtype=self._dtype,
            knobs={**settings.knobs, **self._cost_knobs},
        )


def summarise(
    cell: Cell, jobs: Sequence[ContextJob], requests: Sequence[RequestEvent], ends: Sequence[JobEvent], reuse: Reuse
) -> Outcome:
    """Summarise a run. Pauses of people are no part of a job's latency: they are as recorded under every policy."""
    paused_s = {recorded.job.id: sum(turn.pause_s for turn in recorded.job.turns[:-1]) for recorded in jobs}
    finished = sorted((each.started_s, each.job, each) for each in ends if each.status == "finished")
    latencies_s = {job: each.finished_s - started_s - paused_s[job] for started_s, job, each in finished}
    latencies = list(latencies_s.values())
    ttfts = [each.ttft_s for each in requests if each.ttft_s is not None]
    total = sum(each.prompt_tokens for each in requests)
    return Outcome(
        cell,
        len(jobs),
        float(np.mean(latencies)) if latencies else None,
        float(np.percentile(latencies, 90)) if latencies else None,
        float(np.percentile(ttfts, 99)) if ttfts else None,
        sum(each.cached_tokens or 0 for each in requests) / total if total else 0.0,
        reuse.bound_hits(cell.all_tokens),
        reuse.endless_hits,
        latencies_s=latencies_s,
        working_set=find_working_set(requests, ends),
    )


def start_worker(settings: PlanSettings, jobs: Sequence[Job]) -> None:
    """Make this process a worker. Ctrl-C is its parent's: that one ends it."""
    global _worker  # noqa: PLW0603 (a pool's processes have nothing else to keep it in)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker = Worker(settings, jobs)
    # A simulation makes many objects and few circles. To look for these took a tenth of its time.
    gc.freeze()
    gc.set_threshold(_OBJECTS_UNTIL_COLLECTED)


def run_cell(cell: Cell) -> Outcome:
    """Simulate a cell in a process that is a worker."""
    assert _worker is not None
    outcome = _worker.run(cell)
    # The engine is a circle, with all of its blocks.
    gc.collect()
    return outcome


def choose_routing(settings: PlanSettings, policy: str) -> str:
    """Return the routing that the user names, else the one that a server with this policy has."""
    if settings.routing is not None:
        return settings.routing
    config = read_config({CONFIG_KEY: {**settings.knobs, "policy": policy}})
    return DEFAULT_ROUTING if keeps_jobs_home(config) else VLLM_ROUTING
