"""How far a simulated seed can be trusted: the same jobs, each arrival and each tool later by up to a millisecond.

python benchmarks/jitter.py --seed 100 --times 8 --policy vllm --policy agentcache [--rate 1.3] [--jobs 80]

BFCL web-search jobs, Llama-3.1-8B on an NVIDIA H200. Near the knee a millisecond puts requests into other steps, and
what is evicted for them differs from there on.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
from mean_latency import simulate_means

from agentcache.jobs.recorded_job import RecordedJob
from agentcache.jobs.settings import JobSettings
from tool_runtime.agent.job import Job

JITTER_S = 0.001


def delay(jobs: Sequence[RecordedJob], number: int) -> list[RecordedJob]:
    """Return the jobs as they are for 0, else with delays that this number draws."""
    if not number:
        return list(jobs)
    chance = np.random.default_rng(number)
    return [replace(one, job=_delay_job(one.job, chance)) for one in jobs]


def _delay_job(job: Job, chance: np.random.Generator) -> Job:
    def later(seconds: float) -> float:
        return seconds + float(chance.uniform(0, JITTER_S))

    turns = [
        replace(turn, results=tuple(replace(result, duration_s=later(result.duration_s)) for result in turn.results))
        for turn in job.turns
    ]
    return replace(job, arrival_s=later(job.arrival_s), turns=tuple(turns))


def measure(number: int, jobs: JobSettings, policies: tuple[str, ...], kv_tokens: int) -> tuple[float, ...]:
    """Return the mean job latency in seconds under each policy."""
    return simulate_means(jobs, policies, kv_tokens, [partial(delay, number=number)])[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--times", type=int, default=8)
    parser.add_argument("--policy", dest="policies", action="append", required=True)
    parser.add_argument("--rate", type=float, default=1.3, help="jobs per second")
    parser.add_argument("--jobs", type=int, default=80)
    parser.add_argument("--kv-tokens", type=int, default=500_000)
    parser.add_argument("--at-once", type=int, default=2)
    options = parser.parse_args()
    jobs = JobSettings(workload="bfcl", jobs=options.jobs, rate=options.rate, arrival="poisson", seed=options.seed)
    policies = tuple(options.policies)
    with ProcessPoolExecutor(options.at_once) as pool:
        work = partial(measure, jobs=jobs, policies=policies, kv_tokens=options.kv_tokens)
        columns = zip(*pool.map(work, range(options.times)), strict=True)
    for policy, means in zip(policies, columns, strict=True):
        each = " ".join(f"{mean:.1f}" for mean in means)
        spread = statistics.stdev(means) / statistics.mean(means)
        sys.stdout.write(f"{policy}: mean {statistics.mean(means):.1f} s, deviation {spread:.1%}: {each}\n")


if __name__ == "__main__":
    main()
