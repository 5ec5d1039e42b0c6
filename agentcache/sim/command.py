"""Runs `agentcache simulate`: checks, prepares, runs each policy under a virtual clock, reports."""

from __future__ import annotations

import datetime
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from agentcache.config_reader import list_knobs
from agentcache.errors import INTERRUPTED
from agentcache.jobs.loader import LoadedRun, check_fit, describe_jobs, load_run
from agentcache.jobs.recorded_job import PromptWriter
from agentcache.jobs.tokenizer import LocalTokenizer
from agentcache.models.catalog import resolve_model
from agentcache.report.builder import write_report
from agentcache.report.events import EventWriter, PolicyEvent, RunRecord
from agentcache.report.summary import Summary
from agentcache.run.display import ReplayDisplay
from agentcache.run.folder import ENGINE_LOG, begin_run, divert_output, find_versions
from agentcache.sim.clock import VirtualClock
from agentcache.sim.costs import find_costs, name_costs, name_dtype
from agentcache.sim.delays import MEASURED_FRONT_END, FrontEnd
from agentcache.sim.engine import SimulatedEngine
from agentcache.sim.engine_shape import EngineShape, make_config
from agentcache.sim.routing import make_routing
from agentcache.sim.runner import Future, SimulationRunner
from agentcache.sim.settings import SimulationSettings

_GPU_NOTE = (
    "Simulated: vLLM's scheduler, its block pool and the policy ran as in production under a virtual clock; the "
    "seconds of every step come from a model of the GPU: {}."
)


def simulate(settings: SimulationSettings) -> tuple[int, Summary]:
    """Return exit status and figures; 0 when every job finished, 130 after Ctrl-C.

    Raises InputError, leaving nothing behind, for anything that cannot work.
    """
    settings.check()
    with divert_output(Path(os.devnull)):
        simulation = Simulation(settings)
    _begin(settings, simulation)
    with divert_output(settings.out / ENGINE_LOG) as terminal:
        status = simulation.run(Console(file=terminal))
    return status, write_report([settings.out], settings.out).summary


def simulate_all(runs: Sequence[SimulationSettings]) -> tuple[int, list[Summary]]:
    """Run one simulation after another; return the worst exit status and the figures of those that began.

    Ctrl-C ends them all. Raises InputError as `simulate` does; what one is refused for on its own, before the first.
    """
    for settings in runs:
        settings.check()
    summaries: list[Summary] = []
    for settings in runs:
        if len(runs) > 1:
            Console().print(settings.out.name, highlight=False)
        status, summary = simulate(settings)
        summaries.append(summary)
        if status:
            return status, summaries
    return 0, summaries


class Simulation:
    """The same jobs under one policy after the other, each with a cache and a clock of its own."""

    def __init__(self, settings: SimulationSettings) -> None:
        """Make or find the model's folder and load the jobs. Raises InputError; runs nothing."""
        self._out = settings.out
        self._policies = settings.policies
        self._replicas = settings.replicas
        self._routing = settings.routing
        path = resolve_model(settings.model_name).path
        tokenizer = LocalTokenizer(path)
        self.loaded = load_run(settings.jobs, tokenizer)
        self.jobs = self.loaded.jobs
        self.prompts = PromptWriter(tokenizer)
        # The waits of a recording are from engine to engine: the way to the client and back is in them.
        self._front_end = FrontEnd() if settings.jobs.kind == "recording" else MEASURED_FRONT_END
        costs = settings.model, settings.gpu, settings.tensor_parallel_size, settings.profile
        self.gpu = find_costs(*costs)[0]
        self.shape = EngineShape(
            model_path=path,
            cache_tokens=settings.cache_tokens,
            block_size=settings.block_size,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_num_seqs=settings.max_num_seqs,
            tensor_parallel_size=settings.tensor_parallel_size,
            # vLLM's default where it can.
            async_scheduling=settings.gpu != "cpu",
            host_tokens=settings.cpu_tokens,
            host_is_lazy=settings.cpu_lazy,
            dtype=name_dtype(*costs),
            # The policy's costs are those of the GPU that is simulated, not of the one at hand.
            knobs={**settings.knobs, **name_costs(*costs)},
        )
        max_tokens = make_config(self.shape, "lru").model_config.max_model_len
        check_fit(self.jobs, settings.jobs, cache_tokens=settings.cache_tokens, max_tokens=max_tokens)

    def run(self, console: Console) -> int:
        """Run the policies and return the exit status."""
        with EventWriter(self._out) as writer:
            try:
                for policy in self._policies:
                    writer.write(self._run_policy(policy, writer, console))
            except KeyboardInterrupt:
                console.print("interrupted: the jobs that finished are in the report")
                return INTERRUPTED
        return 0

    def make_engines(self, policy: str) -> tuple[list[SimulatedEngine], Future | None]:
        """Make a run's engines, under one clock, and what hears of requests that are certain to come: nothing here.

        Raises InputError for what vLLM refuses.
        """
        clock = VirtualClock()
        return [SimulatedEngine(self.shape, policy, self.gpu, clock) for _ in range(self._replicas)], None

    def _run_policy(self, policy: str, writer: EventWriter, console: Console) -> PolicyEvent:
        lanes = self.loaded.loop.begin() if self.loaded.loop else None
        with ReplayDisplay(policy, None if lanes else len(self.jobs), console) as display:
            engines, future = self.make_engines(policy)
            display.engine_ready(None)
            runner = SimulationRunner(
                policy,
                engines,
                prompts=self.prompts,
                writer=writer,
                display=display,
                future=future,
                front_end=self._front_end,
                routing=make_routing(self._routing, engines),
            )
            try:
                if lanes is None:
                    runner.run(self.jobs)
                else:
                    runner.run_lanes(lanes)
            finally:
                for engine in engines:
                    engine.close()
        return PolicyEvent(
            policy=policy,
            block_size=engines[0].block_size,
            cache_tokens=sum(engine.cache_tokens for engine in engines),
            preemptions=sum(engine.preemptions for engine in engines),
            evictions=_add_evictions(engines),
            hit_tokens=_add_hits(engines),
            waits_s=_add_waits(engines),
            prefill_s=sum(engine.prefill_s for engine in engines),
            busy_s=tuple(engine.busy_s for engine in engines),
            gpus=self.shape.tensor_parallel_size * self._replicas,
            window_s=lanes.window_s if lanes else None,
        )


def _add_evictions(engines: Sequence[SimulatedEngine]) -> dict[str, int] | None:
    counts = [engine.evictions for engine in engines]
    if any(each is None for each in counts):
        return None
    return dict(sum((Counter(each) for each in counts), Counter[str]()))


def _add_waits(engines: Sequence[SimulatedEngine]) -> dict[str, float] | None:
    waits_s: dict[str, float] = {}
    for engine in engines:
        for reason, seconds in (engine.waits_s or {}).items():
            waits_s[reason] = waits_s.get(reason, 0.0) + seconds
    return waits_s or None


def _add_hits(engines: Sequence[SimulatedEngine]) -> dict[str, int] | None:
    if not engines[0].has_host_cache:
        return None
    return dict(sum((engine.hit_tokens for engine in engines), Counter[str]()))


def _begin(settings: SimulationSettings, simulation: Simulation) -> None:
    _, profile = find_costs(settings.model, settings.gpu, settings.tensor_parallel_size, settings.profile)
    kind = "measured" if profile.measured else "analytic"
    record = RunRecord(
        command=settings.command,
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        workload=settings.jobs.workload,
        model=settings.model,
        device=f"simulated {_device(settings.gpu)} ({kind} cost model)",
        seed=settings.jobs.seed,
        jobs=simulation.loaded.expected,
        lanes=settings.jobs.concurrency,
        cache_tokens=settings.cache_tokens,
        settings=_describe(settings, simulation.loaded),
        versions=find_versions(),
        notes=(*simulation.loaded.notes, _GPU_NOTE.format(profile.source)),
        losses=simulation.loaded.losses,
    )
    begin_run(settings.out, record, overwrite=settings.overwrite)


def _device(gpu: str) -> str:
    return "CPU" if gpu == "cpu" else f"NVIDIA {gpu.upper()}"


def _describe(settings: SimulationSettings, loaded: LoadedRun) -> dict[str, str | int | float | bool | None]:
    return {
        **describe_jobs(settings.jobs, loaded.jobs),
        "gpu": settings.gpu,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "block_size": settings.block_size,
        **({"cpu_tokens": settings.cpu_tokens, "cpu_lazy": settings.cpu_lazy} if settings.cpu_tokens else {}),
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "max_num_seqs": settings.max_num_seqs,
        **({"replicas": settings.replicas, "routing": settings.routing} if settings.replicas > 1 else {}),
        **list_knobs(settings.knobs),
    }
