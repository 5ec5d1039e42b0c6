"""Two tenants, one with ten times the load of the other: what shares give the small one, and what they cost.

python benchmarks/tenants.py --out runs/tenants [--seeds 0 1 2] [--rate 0.05] [--kv-tokens 500000] [--cpu-tokens N]

Both play web-search agents with contexts of their own. Three simulations a seed: without shares, with shares of equal
weight, and the small one alone on half of the machine (steps take twice as long, the caches hold half). The last
columns are the measure: the small one's mean job latency with shares over that alone on half, and the jobs' makespan
with shares over that without.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from converters.recorded import Session, write_sessions
from rich.console import Console
from unfair_loads import draw_tokens, make_agent

from agentcache.jobs.settings import JobSettings
from agentcache.report.events import read_events
from agentcache.report.policy_run import group_by_policy
from agentcache.run.folder import divert_output
from agentcache.sim.clock import VirtualClock
from agentcache.sim.command import Simulation
from agentcache.sim.engine import SimulatedEngine
from agentcache.sim.settings import DEFAULT_GPU, DEFAULT_MODEL, SimulationSettings

POLICY = "agentcache"
SMALL, LARGE, TIMES = "small", "large", 10
SHARES: Mapping[str, Any] = {"tenants": {"known": {SMALL: {}, LARGE: {}}}}


def draw(tenant: str, rate: float, seconds: float, seed: int) -> list[Session]:
    rng = np.random.default_rng([seed, len(tenant)])
    system, arrivals_s = draw_tokens(rng, 1000), np.sort(rng.uniform(0, seconds, round(rate * seconds)))
    sessions = [
        make_agent(f"{tenant}-{number}", float(at_s), rng, begin=system, turns=8, added=3000, tool_s=1.9)
        for number, at_s in enumerate(arrivals_s)
    ]
    return [replace(session, tenant=tenant) for session in sessions]


class Half(Simulation):
    """On a GPU that takes twice as long for each step."""

    def make_engines(self, policy: str) -> tuple[list[SimulatedEngine], None]:
        seconds = {each.name: 2 * getattr(self.gpu, each.name) for each in fields(self.gpu) if each.name[-2:] == "_s"}
        return [SimulatedEngine(self.shape, policy, replace(self.gpu, **seconds), VirtualClock())], None


class Played(NamedTuple):
    """Mean job latencies by tenant, and when the last job ended, in seconds."""

    latency_s: Mapping[str, float]
    ended_s: float


def play(recording: Path, out: Path, given: argparse.Namespace, kind: type[Simulation], knobs: Any) -> Played:
    """Simulate a recording. A half has half of the caches."""
    parts = 2 if kind is Half else 1
    settings = SimulationSettings(
        command="benchmarks/tenants.py",
        jobs=JobSettings(workload=f"recording:{recording}"),
        out=out,
        overwrite=False,
        model=DEFAULT_MODEL,
        gpu=DEFAULT_GPU,
        policies=(POLICY,),
        knobs=knobs,
        kv_tokens=given.kv_tokens // parts,
        cpu_tokens=given.cpu_tokens // parts,
    )
    out.mkdir(parents=True, exist_ok=True)
    with divert_output(out / "engine.log"):
        kind(settings).run(Console(quiet=True))
    jobs = group_by_policy(read_events(out))[POLICY].finished_jobs
    of = {
        tenant: [job for job in jobs if job.tenant == tenant] for tenant in {job.tenant for job in jobs if job.tenant}
    }
    by_tenant = {tenant: fmean(job.finished_s - job.started_s for job in own) for tenant, own in of.items()}
    return Played(by_tenant, max(job.finished_s for job in jobs))


def measure(seed: int, given: argparse.Namespace) -> None:
    folder = given.out / f"seed-{seed}"
    folder.mkdir(parents=True)
    small = draw(SMALL, given.rate, given.seconds, seed)
    large = draw(LARGE, TIMES * given.rate, given.seconds, seed)
    write_sessions(folder / "both.jsonl", [*small, *large], kind="two tenants")
    write_sessions(folder / "small.jsonl", small, kind="one tenant")
    free = play(folder / "both.jsonl", folder / "free", given, Simulation, {})
    shared = play(folder / "both.jsonl", folder / "shared", given, Simulation, SHARES)
    alone = play(folder / "small.jsonl", folder / "alone", given, Half, {})
    latencies = [free.latency_s[SMALL], shared.latency_s[SMALL], alone.latency_s[SMALL]]
    latencies += [free.latency_s[LARGE], shared.latency_s[LARGE]]
    ratios = shared.latency_s[SMALL] / alone.latency_s[SMALL], shared.ended_s / free.ended_s
    cells = [*(f"{each:10.1f}" for each in latencies), *(f"{each:10.3f}" for each in ratios)]
    print(seed, *cells, flush=True)  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rate", type=float, default=0.05, help="jobs a second of the small tenant")
    parser.add_argument("--seconds", type=float, default=150.0, help="in which jobs arrive")
    parser.add_argument("--kv-tokens", type=int, default=500_000)
    parser.add_argument("--cpu-tokens", type=int, default=0)
    given = parser.parse_args()
    heads = "small free", "shared", "half", "large free", "shared", "to half", "makespan"
    print("s", *(f"{head:>10}" for head in heads))  # noqa: T201
    for seed in given.seeds:
        measure(seed, given)


if __name__ == "__main__":
    main()
