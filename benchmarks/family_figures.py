"""Shows how sessions with sub-agents fare (parents), and those without beside them (strangers), in simulated runs.

    python benchmarks/family_figures.py runs/families-520 runs/families-521

A family is split when several engines served its requests.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from agentcache.report.events import read_events
from agentcache.report.policy_run import PolicyRun, group_by_policy
from agentcache.report.summary import summarize_policy
from agentcache.report.table import NO_DATA
from workloads.recording.line import Line, name_file

# The engines that served a family, by its name.
Homes = Mapping[str, Set[int]]


class Fared(NamedTuple):
    """Seconds: how long each parent that finished took, and when each turn of strangers had its first token."""

    parents_s: list[float]
    strangers_first_s: list[float]


def see_how_families_fared(runs: Iterable[PolicyRun]) -> Fared:
    """See how parents and strangers fared. Both are empty in runs without sub-agents."""
    fared = Fared([], [])
    for run in runs:
        parents = {request.job for request in run.requests if request.thread is not None}
        fared.parents_s.extend(job.finished_s - job.started_s for job in run.finished_jobs if job.job in parents)
        if parents:
            first_s = (each.ttft_s for each in run.answered if each.job not in parents)
            fared.strangers_first_s.extend(seconds for seconds in first_s if seconds is not None)
    return fared


def describe_families(runs: Sequence[PolicyRun], homes: Homes) -> list[str]:
    """Describe the parents' mean latency, the strangers' P99 of first tokens, and how many families were split."""
    parents_s, strangers_first_s = see_how_families_fared(runs)
    return [
        f"{np.mean(parents_s):,.1f}" if parents_s else NO_DATA,
        f"{np.percentile(strangers_first_s, 99):,.2f}" if strangers_first_s else NO_DATA,
        f"{sum(len(engines) > 1 for engines in homes.values())} of {len(homes)}" if homes else NO_DATA,
    ]


def find_homes(requests: Iterable[tuple[str, str | None, int]]) -> Homes:
    """Find the engines of each family from the session, thread and engine of requests."""
    engines, families = defaultdict(set), set()
    for session, thread, engine in requests:
        engines[session].add(engine)
        if thread is not None:
            families.add(session)
    return {family: engines[family] for family in families}


def read_homes(recording: Path, engines: int) -> Homes:
    """Read them from what a server's engines have recorded, each in a file of its own."""
    files = {engine: name_file(recording, engine) for engine in range(engines)}
    lines = (
        (engine, Line.model_validate_json(text))
        for engine, file in files.items()
        if file.exists()
        for text in file.read_text().splitlines()
    )
    return find_homes((line.session, line.thread, engine) for engine, line in lines if line.session is not None)


def read_simulated_homes(run: PolicyRun) -> Homes:
    """Read them from a simulation's events; none where there was one engine."""
    return find_homes((each.job, each.thread, each.engine) for each in run.requests if each.engine is not None)


def tell(folders: Sequence[Path]) -> Table:
    """Make the table."""
    table = Table("run", "policy", "parents, mean job (s)", "strangers, P99 first token (s)", "split", "hits (%)")
    by_policy: dict[str, list[tuple[str, PolicyRun]]] = {}
    for folder in folders:
        for policy, run in group_by_policy(read_events(folder)).items():
            by_policy.setdefault(policy, []).append((folder.name, run))
    for policy, runs in by_policy.items():
        for name, run in runs:
            hits = summarize_policy(run).token_hit_rate
            shown = NO_DATA if hits is None else f"{100 * hits:.1f}"
            table.add_row(name, policy, *describe_families([run], read_simulated_homes(run)), shown)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN", help="a folder of `agentcache simulate`")
    Console(width=120).print(tell(parser.parse_args().folders))


if __name__ == "__main__":
    main()
