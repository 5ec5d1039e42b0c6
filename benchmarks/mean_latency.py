"""The mean job latency of simulated jobs on an NVIDIA H200 with Llama-3.1-8B, in this process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from agentcache.jobs.recorded_job import RecordedJob
from agentcache.jobs.settings import JobSettings
from agentcache.report.events import EVENTS_FILE, read_events
from agentcache.report.policy_run import group_by_policy
from agentcache.report.summary import summarize_policy
from agentcache.run.output import divert_output
from agentcache.sim.command import Simulation
from agentcache.sim.settings import DEFAULT_GPU, DEFAULT_MODEL, SimulationSettings

MODEL = DEFAULT_MODEL


def simulate_means(
    settings: JobSettings,
    policies: Sequence[str],
    kv_tokens: int,
    changes: Sequence[Callable[[list[RecordedJob]], list[RecordedJob]]],
) -> list[tuple[float, ...]]:
    """Return the mean job latency in seconds under each policy, for each change of the jobs, which are loaded once."""
    with tempfile.TemporaryDirectory() as folder, divert_output(Path(os.devnull)):
        out = Path(folder)
        simulated = SimulationSettings(
            command="",
            jobs=settings,
            out=out,
            overwrite=True,
            policies=tuple(policies),
            model=MODEL,
            gpu=DEFAULT_GPU,
            kv_tokens=kv_tokens,
        )
        simulated.check()
        simulation = Simulation(simulated)
        loaded = simulation.jobs
        means = []
        for change in changes:
            (out / EVENTS_FILE).unlink(missing_ok=True)
            simulation.jobs = change(loaded)
            simulation.run(Console(quiet=True))
            runs = group_by_policy(read_events(out))
            means.append(tuple(summarize_policy(runs[policy]).job_latency_s.mean or 0.0 for policy in policies))
    return means
