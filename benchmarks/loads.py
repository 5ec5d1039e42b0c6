"""Shows from which load on a policy gains: the same jobs at several rates, simulated on an NVIDIA H200.

python benchmarks/loads.py --rates 0.4 0.8 1.6 --seeds 0 1 2 --jobs 30 --kv-tokens 150000

BFCL web-search jobs, Llama-3.1-8B. `make demo` ends with it: a replay on the CPU shows one load, and that there is
something to gain; this shows where nothing is.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

from mean_latency import MODEL, simulate_means
from rich.console import Console
from rich.table import Table

from agentcache.jobs.recorded_job import RecordedJob
from agentcache.jobs.settings import JobSettings
from workloads.pacing import draw_arrivals

POLICIES = ("vllm", "agentcache")
# Below this share seeds differ by more than policies do.
GAIN = 0.05


def measure(seed: int, rates: Sequence[float], jobs: int, kv_tokens: int) -> list[tuple[float, ...]]:
    """Return the mean job latency in seconds under each policy, for each rate."""
    settings = JobSettings(workload="bfcl", jobs=jobs, rate=rates[0], seed=seed)
    return simulate_means(settings, POLICIES, kv_tokens, [partial(arrive, rate=rate, seed=seed) for rate in rates])


def arrive(jobs: Sequence[RecordedJob], rate: float, seed: int) -> list[RecordedJob]:
    """Return the same jobs, arriving at this rate."""
    arrivals = draw_arrivals("poisson", len(jobs), rate, seed)
    return [replace(one, job=replace(one.job, arrival_s=at_s)) for one, at_s in zip(jobs, arrivals, strict=True)]


def tell(rates: Sequence[float], measured: Iterable[Sequence[tuple[float, ...]]], title: str) -> Table:
    """Make the table: a row a rate, the means over the seeds, and what each seed gained. `measured` is by seed."""
    table = Table("jobs/s", *(f"{policy} (s)" for policy in POLICIES), "gain", "by seed", "", title=title)
    started = False
    for rate, pairs in zip(rates, zip(*measured, strict=True), strict=True):
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
        f"Mean job latency, simulated on one NVIDIA H200 ({MODEL}, {args.jobs} BFCL web-search jobs, "
        f"a cache of {args.kv_tokens:,} tokens, seeds {seeds})"
    )
    console = Console(width=100)
    with ProcessPoolExecutor(os.cpu_count()) as pool, console.status("Simulating …"):
        work = partial(measure, rates=args.rates, jobs=args.jobs, kv_tokens=args.kv_tokens)
        measured = list(pool.map(work, args.seeds))
    console.print(tell(args.rates, measured, title))


if __name__ == "__main__":
    main()
