"""Compares policies over many seeds, simulated or on GPUs, and says how sure the differences are.

python benchmarks/compare.py --seeds choose --rates 1.3 2.6 --arm vllm --arm agentcache \
  --arm "agentcache order.patience_s=20" --at-once 16 --out runs/compare \
  -- simulate bfcl --gpu h200 --model llama-3.1-8b --jobs 80 --kv-tokens 500000
python benchmarks/compare.py --seeds 100-105 --rates 1.3 --arm vllm --arm agentcache --gpus 0 1 --out runs/measured \
  -- replay bfcl --model shape:llama-3.1-8b --jobs 80 --kv-tokens 500000

Settings are chosen on the seeds `choose` (0 to 19) and reported on `report` (100 to 119), never on the same. An arm is
a policy and the knobs that it runs with. Arms with the same knobs share a command, whose order of policies rotates
with the seed. A command whose folder holds a summary is not run again, so a comparison that broke off goes on.
"""

from __future__ import annotations

import argparse
import math
import queue
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track
from summaries import measure

SEEDS = {"choose": range(20), "report": range(100, 120)}
RESAMPLES = 10_000
# Of one policy's figures in a summary: the columns behind the mean job latency, each a mean over seeds.
COLUMNS: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "job P90 (s)": lambda one: one["job_latency_s"]["p90"],
    "TTFT mean (s)": lambda one: one["ttft_s"]["mean"],
    "TTFT P99 (s)": lambda one: one["ttft_s"]["p99"],
    "TTFT worst (s)": lambda one: one["ttft_s"]["max"],
    "token hits (%)": lambda one: 100 * one["token_hit_rate"],
    "lost jobs": lambda one: one["failed"] + one["interrupted"],
}


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy and its knobs, as typed: "agentcache order.patience_s=20"."""

    name: str

    @property
    def policy(self) -> str:
        return self.name.split()[0]

    @property
    def knobs(self) -> tuple[str, ...]:
        return tuple(self.name.split()[1:])


@dataclass(frozen=True, slots=True)
class Run:
    """One command: arms of the same knobs, under one load and seed."""

    arms: tuple[Arm, ...]
    rate: float
    seed: int

    @property
    def folder(self) -> str:
        words = [
            f"rate{self.rate:g}",
            f"seed{self.seed}",
            *self.arms[0].knobs,
            *sorted(arm.policy for arm in self.arms),
        ]
        return "-".join("".join(c if c.isalnum() else "." for c in word) for word in words)

    def arguments(self) -> list[str]:
        first = self.seed % len(self.arms)
        rotated = [*self.arms[first:], *self.arms[:first]]
        policies = [word for arm in rotated for word in ("--policy", arm.policy)]
        knobs = [word for knob in self.arms[0].knobs for word in ("--agentcache", knob)]
        return [*policies, *knobs, "--rate", str(self.rate), "--seed", str(self.seed)]


def plan_runs(arms: Sequence[Arm], rates: Sequence[float], seeds: Sequence[int]) -> Iterator[Run]:
    """Yield one for each load, seed and set of knobs."""
    groups: dict[tuple[str, ...], list[Arm]] = {}
    for arm in arms:
        groups.setdefault(arm.knobs, []).append(arm)
    for rate in rates:
        for seed in seeds:
            yield from (Run(tuple(group), rate, seed) for group in groups.values())


def execute(run: Run, command: Sequence[str], out: Path, gpus: queue.Queue[str] | None) -> dict[str, Any]:
    """Return each policy's figures. Raises RuntimeError with what the command said if it failed."""
    arguments = [*command, *run.arguments()]
    if gpus is None:
        # Simulations run beside each other: more threads than one each would only wait for each other.
        return measure(arguments, out / run.folder, {"OMP_NUM_THREADS": "1"})
    gpu = gpus.get()
    try:
        return measure(arguments, out / run.folder, {"CUDA_VISIBLE_DEVICES": gpu})
    finally:
        gpus.put(gpu)


def find_interval(sample: Sequence[float]) -> tuple[float, float]:
    """Of the mean, with 95 % confidence, by bootstrap over the seeds (percentiles); NaN of one seed, which has none."""
    if len(sample) < 2:
        return math.nan, math.nan
    values = np.asarray(sample)
    drawn = np.random.default_rng(0).choice(values, (RESAMPLES, len(values)))
    low, high = np.percentile(drawn.mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def write_table(arms: Sequence[Arm], found: Mapping[tuple[str, int], Mapping[str, Any]], seeds: Sequence[int]) -> str:
    """Markdown of one load. `found` has figures by arm and seed; differences are to the first arm, seed by seed."""
    head = ["arm", "job mean (s)", "95 %", f"to {arms[0].name}", "95 %", "sooner in", *COLUMNS]
    base = [found[arms[0].name, seed]["job_latency_s"]["mean"] for seed in seeds]
    rows = []
    for arm in arms:
        figures = [found[arm.name, seed] for seed in seeds]
        means = [one["job_latency_s"]["mean"] for one in figures]
        change = [100 * (mean / before - 1) for mean, before in zip(means, base, strict=True)]
        sooner = sum(mean < before for mean, before in zip(means, base, strict=True))
        paired = (
            ["–", "–", "–"]
            if arm == arms[0]
            else [f"{np.mean(change):+.1f} %", _show(find_interval(change)), f"{sooner} of {len(seeds)}"]
        )
        columns = [f"{np.mean([column(one) for one in figures]):.2f}" for column in COLUMNS.values()]
        rows.append([arm.name, f"{np.mean(means):.1f}", _show(find_interval(means)), *paired, *columns])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---", *["---:"] * (len(head) - 1)], *rows])


def _show(interval: tuple[float, float]) -> str:
    return "–" if math.isnan(interval[0]) else f"{interval[0]:.1f} to {interval[1]:.1f}"


def read_seeds(text: str) -> list[int]:
    """`choose`, `report`, or "3,5,100-105"."""
    if text in SEEDS:
        return list(SEEDS[text])
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=read_seeds, required=True, help="choose, report, or as in 3,5,100-105")
    parser.add_argument("--rates", type=float, nargs="+", required=True, help="jobs per second")
    parser.add_argument("--arm", dest="arms", action="append", type=Arm, required=True, help='"POLICY KNOB=VALUE ..."')
    parser.add_argument("--at-once", type=int, default=1, help="commands side by side, of simulations")
    parser.add_argument("--gpus", nargs="+", help="of a replay: one engine on each of these at a time")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("command", nargs="+", help="behind --: simulate or replay, with what all runs share")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    gpus: queue.Queue[str] | None = None
    if options.gpus:
        gpus = queue.Queue()
        for gpu in options.gpus:
            gpus.put(gpu)
    runs = list(plan_runs(options.arms, options.rates, options.seeds))
    with ThreadPoolExecutor(len(options.gpus or ()) or options.at_once) as pool:
        work = pool.map(lambda run: execute(run, options.command, options.out, gpus), runs)
        results = list(track(work, "commands", total=len(runs)))
    for rate in options.rates:
        found = {
            (arm.name, run.seed): result[arm.policy]
            for run, result in zip(runs, results, strict=True)
            if run.rate == rate
            for arm in run.arms
        }
        sys.stdout.write(f"\n{rate:g} jobs/s, seeds {','.join(map(str, options.seeds))}\n\n")
        sys.stdout.write(write_table(options.arms, found, options.seeds) + "\n")


if __name__ == "__main__":
    main()
