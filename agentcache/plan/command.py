"""Runs `agentcache plan`: reads a recording, simulates policies and caches side by side, writes a table and a page."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from agentcache.errors import INTERRUPTED
from agentcache.models.published import read_shape
from agentcache.plan.page import Plan, describe_plan, list_fewest, tell_pressure, write_headline, write_page
from agentcache.plan.settings import PLAN_FILE, Cell, PlanSettings
from agentcache.plan.stretch import Stretch, find_busiest, find_longest, load_stretch
from agentcache.plan.sweep import Pool, Sweep, WorkerEndedError, find_fewest
from agentcache.plan.table import KNOWN_ERROR, LEGEND, terminal_table
from agentcache.plan.worker import Worker, choose_routing
from agentcache.policy.presets import ESTIMATE_ERROR, PRESETS
from agentcache.report.terminal import print_lines
from agentcache.run.folder import divert_output
from agentcache.sim.costs import find_costs
from workloads.loaded import LoadedJobs
from workloads.recording.reader import Recording


def plan(settings: PlanSettings, recording: Recording) -> int:
    """Return the exit status: 0, or 130 after Ctrl-C, which leaves a page of what was simulated by then, if anything.

    `recording` is what the file of the settings holds.

    Raises InputError, leaving nothing behind, for anything that cannot work; WorkerEndedError, with such a page, where
    a process that simulated was killed.
    """
    settings.check()
    settings.check_model()
    requests = find_busiest(recording.requests, settings.requests)
    with divert_output(Path(os.devnull), kept=2 if settings.as_json else 1) as terminal:
        # The first one tries what every worker does.
        most = Worker(settings, []).find_max_tokens()
        # Sizes that were given are planned, whatever fits them.
        longest = 0 if settings.kv_tokens else find_longest(recording, requests, most)
        taken = settings.leave_out_small(longest)
        stretch = load_stretch(taken, recording, requests, most)
        console = Console(file=terminal)
        # Before minutes of simulations: the file may have been read as another workload than it is.
        read = "; ".join(f"{what}: {found}" for what, found in stretch.describe_traffic().items())
        print_lines(console, [f"Read from {settings.recording}: {read}."])
        sweep = Sweep()
        ended = _simulate_most(taken, stretch.loaded, console, sweep)
    if not sweep.done:
        Console(stderr=True).print("interrupted before anything was simulated: there is no page")
        return INTERRUPTED
    notes = [*_describe_estimate(settings), *_describe_left_out(settings, taken, longest)]
    if not stretch.is_all:
        notes.append(stretch.describe_start(settings.block_size))
    made = _make_plan(taken, stretch, [*notes, *stretch.loaded.notes], sweep)
    page, unwritten = _write(made, settings)
    if settings.as_json:
        sys.stdout.write(json.dumps(describe_plan(made, page), indent=2) + "\n")
    else:
        _show(made, page)
    for error in (ended, unwritten):
        if error is not None:
            raise error
    return INTERRUPTED if sweep.interrupted else 0


def _simulate_most(
    settings: PlanSettings, loaded: LoadedJobs, console: Console, sweep: Sweep
) -> WorkerEndedError | None:
    """Simulate, as far as it goes. Returns what broke it off, if there is something to show all the same."""
    try:
        _simulate(settings, loaded, console, sweep)
    except KeyboardInterrupt:
        sweep.interrupted = True
    except WorkerEndedError as error:
        if not sweep.done:
            raise
        sweep.interrupted = True
        return error
    return None


def _simulate(settings: PlanSettings, loaded: LoadedJobs, console: Console, sweep: Sweep) -> None:
    pool = Pool(settings, loaded.jobs, console, sweep)
    with pool.running():
        cells = settings.list_cells()
        pool.run(cells)
        if settings.target_s is None:
            return
        first, asked = cells[0], len(sweep.cells)
        most = settings.max_gpus // settings.tensor_parallel_size
        for policy in dict.fromkeys(cell.policy for cell in cells):
            cell = Cell(policy, first.kv_tokens, first.cpu_tokens)
            sweep.fewest[policy] = find_fewest(pool.run_one, cell, settings.target_s, most)
        # What the searches tried, side by side.
        sweep.cells[asked:] = sorted(sweep.cells[asked:], key=lambda cell: cell.engines)


def _describe_estimate(settings: PlanSettings) -> Iterator[str]:
    """Say what is not measured, how far off that was where it was, and what measures it."""
    _, profile = find_costs(settings.model, settings.gpu, settings.tensor_parallel_size, settings.profile)
    if profile.measured or settings.gpu == "cpu":
        return
    yield (
        f"Step times on {settings.gpu.upper()}, the room for the cache and the link to the host's memory are "
        f"{profile.source}. {ESTIMATE_ERROR} `agentcache profile {settings.model}` on that GPU measures all three in "
        "about five minutes; give what it writes to --profile."
    )
    if settings.model not in PRESETS and (note := read_shape(settings.model).note):
        yield f"Of {settings.model}: {note}."


def _describe_left_out(asked: PlanSettings, taken: PlanSettings, longest: int) -> list[str]:
    """Say which of the default sizes are not simulated."""
    taken_sizes = {cell.kv_tokens for cell in taken.list_cells()}
    sizes = dict.fromkeys(cell.kv_tokens for cell in asked.list_cells() if cell.kv_tokens not in taken_sizes)
    return [
        f"A cache of {size:,} tokens is left out, as the longest request has {longest:,} (--kv-tokens {size} plans it)."
        for size in sizes
    ]


def _make_plan(settings: PlanSettings, stretch: Stretch, notes: Sequence[str], sweep: Sweep) -> Plan:
    _, profile = find_costs(settings.model, settings.gpu, settings.tensor_parallel_size, settings.profile)
    header = stretch.recording.header
    return Plan(
        command=settings.command,
        recording=str(settings.recording),
        facts={
            "simulated": f"{settings.model} on {settings.tensor_parallel_size} x {settings.gpu.upper()} an engine",
            **_describe_routing(settings, sweep),
            "cost model": f"{'measured: ' if profile.measured else ''}{profile.source}",
            "recorded": f"{header.model}, policy {header.policy}, from {header.started_at} on",
            **stretch.describe_traffic(),
        },
        scope=stretch.describe_scope(),
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
    policies = dict.fromkeys(cell.policy for cell in sweep.cells if cell.engines > 1)
    routings = [f"{policy}: {choose_routing(settings, policy)}" for policy in policies]
    return {"routing": "; ".join(routings)} if routings else {}


def _write(made: Plan, settings: PlanSettings) -> tuple[Path | None, OSError | None]:
    """Write the page. Returns where, or why that fails: the table is worth showing all the same."""
    page = None
    try:
        page = settings.make_folder() / PLAN_FILE
        write_page(made, page)
    except OSError as error:
        if page is not None:
            page.unlink(missing_ok=True)
        return None, error
    return page, None


def _show(made: Plan, page: Path | None) -> None:
    console = Console()
    about = f"Simulated: {made.facts['simulated']}. Recorded: {made.facts['recorded']}."
    print_lines(console, [f"{about} {made.scope}"])
    console.print(terminal_table(made.outcomes, console.width))
    lines = [*list_fewest(made), LEGEND, *made.notes, KNOWN_ERROR]
    if page is not None:
        lines.append(f"plan: {page}")
    if made.interrupted:
        lines.insert(0, "interrupted: this is what was simulated by then")
    print_lines(console, [*lines, tell_pressure(made.outcomes), write_headline(made.outcomes)])
