"""`agentcache plan`: read a recording, simulate policies and caches side by side, show a table and write a page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from agentcache.errors import InputError
from agentcache.plan.bounds import bound_hits
from agentcache.plan.cell import Cell
from agentcache.plan.known_error import KNOWN_ERROR
from agentcache.plan.page import Plan, list_fewest, write_headline, write_page
from agentcache.plan.routing import choose_routing
from agentcache.plan.settings import PlanSettings
from agentcache.plan.stretch import find_busiest
from agentcache.plan.sweep import Pool, Sweep, find_fewest
from agentcache.plan.table import terminal_table
from agentcache.plan.worker import Worker
from agentcache.run.checks import CLAIRVOYANT
from agentcache.run.output import divert_output
from agentcache.sim.costs import find_costs
from workloads.loaded import LoadedJobs
from workloads.recording.line import Line
from workloads.recording.reader import Recording, read_recording
from workloads.recording.sessions import build_jobs

PLAN_FILE = "plan.html"
_INTERRUPTED = 130


def plan(settings: PlanSettings) -> int:
    """Return the exit status: 0, or 130 after Ctrl-C, which leaves a page of what was simulated by then.

    Raises InputError, leaving nothing behind, for anything that cannot work.
    """
    settings.check()
    recording = read_recording(settings.recording)
    requests = find_busiest(recording.requests, settings.requests)
    with divert_output(Path(os.devnull)) as terminal:
        loaded = _load(settings, recording, list(requests))
        console = Console(file=terminal)
        sweep = Sweep()
        try:
            _simulate(settings, loaded, console, sweep)
        except KeyboardInterrupt:
            sweep.interrupted = True
    made = _make_plan(settings, recording, requests, loaded, sweep)
    settings.out.mkdir(parents=True, exist_ok=True)
    write_page(made, settings.out / PLAN_FILE)
    _show(made, settings.out / PLAN_FILE)
    return _INTERRUPTED if sweep.interrupted else 0


def _load(settings: PlanSettings, recording: Recording, requests: list[Line]) -> LoadedJobs:
    """Build the jobs that fit both the model and the smallest cache, and try what every worker does."""
    longest = max(request.input_length + request.output_length for request in requests)
    smallest = min(cell.kv_tokens for cell in settings.list_cells())
    most = Worker(settings, []).find_max_tokens()
    loaded = build_jobs(recording, requests, max_context=min(smallest, most))
    if not loaded.jobs:
        raise InputError(
            f"{settings.recording}: no request has a reply and fits both a cache of {smallest} tokens and the model's "
            f"{most}; the longest has {longest}: give a larger --kv-tokens or another --model"
        )
    return loaded


def _simulate(settings: PlanSettings, loaded: LoadedJobs, console: Console, sweep: Sweep) -> None:
    pool = Pool(settings, loaded.jobs, console, sweep)
    with pool.running():
        cells = settings.list_cells()
        pool.run(cells)
        if settings.target_s is None:
            return
        first, asked = cells[0], len(sweep.cells)
        most = max(1, settings.max_gpus // settings.tensor_parallel_size)
        for policy in dict.fromkeys(cell.policy for cell in cells):
            cell = Cell(policy, first.kv_tokens, first.cpu_tokens)
            sweep.fewest[policy] = find_fewest(pool.run_one, cell, settings.target_s, most)
        # What the searches tried, side by side.
        sweep.cells[asked:] = sorted(sweep.cells[asked:], key=lambda cell: cell.engines)


def _make_plan(
    settings: PlanSettings,
    recording: Recording,
    requests: Sequence[Line],
    loaded: LoadedJobs,
    sweep: Sweep,
) -> Plan:
    notes = list(loaded.notes)
    scope = f"All figures are of all {len(requests):,} requests that were recorded."
    if len(requests) < len(recording.requests):
        notes.insert(0, _describe_stretch(settings, recording, requests))
        scope = (
            f"All figures are of the busiest {len(requests):,} of {len(recording.requests):,} recorded requests, in a "
            f"row: {len(requests) / len(recording.requests):.1%} of them."
        ).replace("%", " %")
    _, profile = find_costs(settings.model, settings.gpu, settings.tensor_parallel_size, settings.profile)
    seconds = (requests[-1].timestamp - requests[0].timestamp) / 1000
    header = recording.header
    return Plan(
        command=settings.command,
        recording=str(settings.recording),
        facts={
            "simulated": f"{settings.model} on {settings.tensor_parallel_size} x {settings.gpu.upper()} an engine",
            **_describe_routing(settings, sweep),
            "cost model": f"{'measured' if profile.measured else 'analytic'}: {profile.source}",
            "recorded": f"{header.model}, policy {header.policy}, from {header.started_at} on",
            "traffic": f"{len(requests):,} requests in {seconds:,.0f} s, {len(loaded.jobs):,} jobs",
            "tokens": f"{sum(request.input_length for request in requests):,} of prompts, "
            f"{sum(request.output_length for request in requests):,} of replies",
        },
        scope=scope,
        outcomes=sweep.outcomes,
        target_s=settings.target_s,
        fewest=sweep.fewest,
        max_gpus=settings.max_gpus,
        gpus_per_engine=settings.tensor_parallel_size,
        notes=notes,
        interrupted=sweep.interrupted,
    )


def _describe_routing(settings: PlanSettings, sweep: Sweep) -> dict[str, str]:
    """Say which engine got a request, where several were simulated."""
    policies = dict.fromkeys(cell.policy for cell in sweep.cells if cell.engines > 1 and cell.policy != CLAIRVOYANT)
    routings = [f"{policy}: {choose_routing(settings, policy)}" for policy in policies]
    return {"routing": "; ".join(routings)} if routings else {}


def _describe_stretch(settings: PlanSettings, recording: Recording, requests: Sequence[Line]) -> str:
    """Say what part is simulated, and by how much its empty cache at the beginning understates hits."""
    part, whole = (
        bound_hits(build_jobs(recording, lines).jobs, settings.block_size) for lines in (requests, recording.requests)
    )
    return (
        f"Simulated are the {len(requests):,} requests of the busiest stretch, of {len(recording.requests):,}; what "
        "was cached before it is not there at its beginning. So a cache without end would hit "
        f"{part:.1%} of their tokens, and {whole:.1%} of all (--requests takes more)."
    ).replace("%", " %")


def _show(made: Plan, page: Path) -> None:
    console = Console()
    console.print(made.scope, markup=False, highlight=False, soft_wrap=True)
    console.print(terminal_table(made.outcomes))
    lines = [*list_fewest(made), *made.notes, KNOWN_ERROR, write_headline(made), f"plan: {page}"]
    if made.interrupted:
        lines.insert(0, "interrupted: this is what was simulated by then")
    for line in lines:
        if line is not None:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
