"""Shows from which load on a policy gains: the same jobs at several rates, simulated on an NVIDIA H200.

python benchmarks/loads.py --rates 0.4 0.8 1.6 --seeds 0 1 2 --jobs 30 --kv-tokens 150000

BFCL web-search jobs, Llama-3.1-8B. `make demo` ends with it: a replay on the CPU shows one load, and that there is
something to gain; this shows where nothing is.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agentcache.jobs.settings import JobSettings
from agentcache.report.events import read_events
from agentcache.report.policy_run import group_by_policy
from agentcache.report.summary import summarize_policy
from agentcache.run.output import divert_output
from agentcache.sim.command import Simulation
from agentcache.sim.settings import DEFAULT_GPU, DEFAULT_MODEL, SimulationSettings

POLICIES = ("vllm", "agentcache")
# Below this share seeds differ by more than policies do.
GAIN = 0.05


def measure(load: tuple[float, int], jobs: int, kv_tokens: int) -> tuple[float, ...]:
    """Return the mean job latency in seconds under each policy. `load` is jobs per second, and the seed."""
    rate, seed = load
    with tempfile.TemporaryDirectory() as folder, divert_output(Path(os.devnull)):
        settings = SimulationSettings(
            command="",
            jobs=JobSettings(workload="bfcl", jobs=jobs, rate=rate, seed=seed),
            out=Path(folder),
            overwrite=True,
            policies=POLICIES,
            model=DEFAULT_MODEL,
            gpu=DEFAULT_GPU,
            kv_tokens=kv_tokens,
        )
        settings.check()
        Simulation(settings).run(Console(quiet=True))
        runs = group_by_policy(read_events(settings.out))
    return tuple(summarize_policy(runs[policy]).job_latency_s.mean or 0.0 for policy in POLICIES)


def tell(rates: Sequence[float], seeds: Sequence[int], measured: Iterable[tuple[float, ...]], title: str) -> Table:
    """Make the table: a row a rate, the means over the seeds, and what each seed gained."""
    table = Table("jobs/s", *(f"{policy} (s)" for policy in POLICIES), "gain", "by seed", "", title=title)
    rows = iter(measured)
    started = False
    for rate in rates:
        pairs = [next(rows) for _ in seeds]
        before, after = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
        gain = 1 - after / before
        verdict = "" if started else "the gain starts here" if gain >= GAIN else "nothing to gain here"
        started = started or gain >= GAIN
        by_seed = " ".join(f"{1 - ours / stock:.0%}" for stock, ours in pairs)
        table.add_row(f"{rate:g}", f"{before:.1f}", f"{after:.1f}", f"{gain:.0%}", by_seed, verdict)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", required=True, help="jobs per second, in rising order")
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--kv-tokens", type=int, required=True)
    args = parser.parse_args()
    seeds = " ".join(map(str, args.seeds))
    title = (
        f"Mean job latency, simulated on one NVIDIA H200 ({DEFAULT_MODEL}, {args.jobs} BFCL web-search jobs, "
        f"a cache of {args.kv_tokens:,} tokens, seeds {seeds})"
    )
    console = Console(width=100)
    loads = [*product(args.rates, args.seeds)]
    with ProcessPoolExecutor(os.cpu_count()) as pool, console.status("Simulating …"):
        work = partial(measure, jobs=args.jobs, kv_tokens=args.kv_tokens)
        measured = list(pool.map(work, loads))
    console.print(tell(args.rates, args.seeds, measured, title))


if __name__ == "__main__":
    main()
