"""What simulated jobs take on an NVIDIA H200 with Llama-3.1-8B, in this process."""

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
from agentcache.report.summary import PolicySummary, summarize_policy
from agentcache.run.folder import divert_output
from agentcache.sim.command import Simulation
from agentcache.sim.settings import DEFAULT_GPU, DEFAULT_MODEL, SimulationSettings

MODEL = DEFAULT_MODEL


class LoadedSimulation:
    """Jobs that are loaded once, to be simulated with changes."""

    def __init__(self, settings: JobSettings, policies: Sequence[str], kv_tokens: int) -> None:
        self._policies = policies
        self._folder = tempfile.TemporaryDirectory()
        simulated = SimulationSettings(
            command="",
            jobs=settings,
            out=Path(self._folder.name),
            overwrite=True,
            policies=tuple(policies),
            model=MODEL,
            gpu=DEFAULT_GPU,
            kv_tokens=kv_tokens,
        )
        with divert_output(Path(os.devnull)):
            simulated.check()
            self._simulation = Simulation(simulated)
        self._loaded = self._simulation.jobs

    def run(self, change: Callable[[list[RecordedJob]], list[RecordedJob]] = list) -> dict[str, PolicySummary]:
        """Return the figures of each policy."""
        out = Path(self._folder.name)
        (out / EVENTS_FILE).unlink(missing_ok=True)
        self._simulation.jobs = change(self._loaded)
        with divert_output(Path(os.devnull)):
            self._simulation.run(Console(quiet=True))
        runs = group_by_policy(read_events(out))
        return {policy: summarize_policy(runs[policy]) for policy in self._policies}


def simulate_means(
    settings: JobSettings,
    policies: Sequence[str],
    kv_tokens: int,
    changes: Sequence[Callable[[list[RecordedJob]], list[RecordedJob]]],
) -> list[tuple[float, ...]]:
    """Return the mean job latency in seconds under each policy, for each change of the jobs, which are loaded once."""
    simulation = LoadedSimulation(settings, policies, kv_tokens)
    return [
        tuple(figures.job_latency_s.mean or 0.0 for figures in simulation.run(change).values()) for change in changes
    ]
