"""Policies over recorded agents side by side: a row a policy, a column a workload. Simulated on an NVIDIA H200.

python benchmarks/side_by_side.py --data FOLDER --out runs/workloads

FOLDER holds the unpacked recordings under the names in CASES; docs/reproduce.md says where they come from. One rule
for all workloads, which looks at stock vLLM alone. The cache holds SHARE of the working set (the different blocks of
all jobs, mean of the seeds 0 to 2), or the longest job. The rate is the knee: the lowest of RATES at which the mean
job takes `vllm` at least SLOWER times as long as at the first of them, where jobs are almost alone (mean of the same
seeds); or the highest of them if there is none. Reported are seeds that took no part in that. What --out has already
is not simulated again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from compare import find_interval, read_seeds
from convert import convert
from job_shapes import measure_shape, show
from loads import arrive
from mean_latency import LoadedSimulation

from agentcache.jobs.settings import JobSettings
from agentcache.report.summary import PolicySummary

POLICIES = ("vllm", "continuum-code", "agentcache")
CHOICE_SEEDS = range(3)
SHARE = 1 / 3
SLOWER = 1.5
RATES = (0.06, 0.09, 0.12, 0.18, 0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.7, 8.0, 11.0, 16.0)
# The users of both benchmarks are programs.
USER_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A workload with its number of jobs.

    `converted` names a kind of trace of which `convert.py` makes a recording in `folder`, by the load, the seed and
    further `options`.
    """

    title: str
    source: str
    jobs: int
    pauses: bool = False
    converted: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, data: Path, out: Path, rate: float, seed: int) -> JobSettings:
        # A pause of a user is `dispersion / rate` seconds: the same at every rate.
        pause = {"dispersion": USER_PAUSE_S * rate} if self.pauses else {}
        source = self.source.format(data=data)
        if not self.converted:
            return JobSettings(workload=source, jobs=self.jobs, rate=rate, seed=seed)
        recording = out / self.folder / f"rate{rate:g}-seed{seed}.jsonl"
        recording.parent.mkdir(parents=True, exist_ok=True)
        words = {"jobs": self.jobs, "rate": rate, "seed": seed, "out": recording, **pause, **self.options}
        convert(
            [self.converted, source, *(word for name, value in words.items() for word in (f"--{name}", str(value)))]
        )
        return JobSettings(workload=f"recording:{recording}", seed=seed)

    @property
    def folder(self) -> str:
        return "".join(c if c.isalnum() else "-" for c in self.title.lower())


CASES = (
    Case("BFCL web search", "bfcl", 40),
    Case("BFCL multi-turn", "{data}/bfcl_multi_turn.jsonl", 30, pauses=True, converted="bfcl_multi_turn"),
    Case("tau-bench", "{data}/taubench.json", 60, pauses=True, converted="tau_bench"),
    Case("WebDancer", "{data}/webdancer.jsonl", 40, pauses=True, converted="webdancer"),
    Case("Magentic-One", "{data}/magagent", 12, converted="lmcache"),
    Case("mini-swe-agent", "{data}/miniswe", 11, converted="lmcache"),
    Case(
        "Claude Code",
        "{data}/traces",
        16,
        converted="agent_traces",
        options={"max-context": 65536, "arrival": "poisson"},
    ),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen for a workload, how long the mean job takes `vllm` alone and how many times that, and sizes."""

    kv_tokens: int
    rate: float
    alone_s: float
    slower: float
    working_set: int
    sizes: tuple[str, ...]


def choose(case: Case, data: Path, out: Path) -> Choice:
    """Apply the rule. The rates are halved, as a higher one loses more."""
    settings = [case.settings(data, out, 1.0, seed) for seed in CHOICE_SEEDS]
    shape = measure_shape(settings)
    working_set = float(np.mean(shape.working_sets))
    kv_tokens = int(np.ceil(max(SHARE * working_set, *shape.ends) / 1000)) * 1000
    loaded = [LoadedSimulation(one, POLICIES[:1], kv_tokens) for one in settings]

    def find_mean(rate: float) -> float:
        pairs = zip(loaded, CHOICE_SEEDS, strict=True)
        runs = [simulation.run(partial(arrive, rate=rate, seed=seed))["vllm"] for simulation, seed in pairs]
        return float(np.mean([run.job_latency_s.mean or 0 for run in runs]))

    alone = find_mean(RATES[0])
    slower: dict[int, float] = {}
    low, high = 0, len(RATES)
    while high - low > 1:
        middle = (low + high) // 2
        slower[middle] = find_mean(RATES[middle]) / alone
        low, high = (low, middle) if slower[middle] >= SLOWER else (middle, high)
    knee = min(high, len(RATES) - 1)
    sizes = tuple(map(show, (shape.turns, shape.prompts, shape.replies, shape.ends, shape.shared)))
    return Choice(kv_tokens, RATES[knee], alone, slower[knee], round(working_set), sizes)


def read_choice(case: Case, data: Path, out: Path) -> Choice:
    path = out / case.folder / "choice.json"
    if not path.exists():
        chosen = choose(case, data, out)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(chosen)))
    return Choice(**json.loads(path.read_text()))


# Figures by policy and seed.
Found = dict[tuple[str, int], PolicySummary]


def measure(case: Case, choice: Choice, data: Path, out: Path, seeds: Sequence[int]) -> Found:
    found: Found = {}
    for seed in seeds:
        path = out / case.folder / f"cache{choice.kv_tokens}-rate{choice.rate:g}-seed{seed}.json"
        if not path.exists():
            simulation = LoadedSimulation(case.settings(data, out, choice.rate, seed), POLICIES, choice.kv_tokens)
            path.write_text(json.dumps({name: one.model_dump() for name, one in simulation.run().items()}))
        stored = json.loads(path.read_text())
        found.update({(name, seed): PolicySummary.model_validate(one) for name, one in stored.items()})
    return found


def show_latency(policy: str, found: Found, seeds: Sequence[int]) -> str:
    """The mean over the seeds, and the change to the first policy, seed by seed, with its interval."""
    mean = f"{np.mean([found[policy, seed].job_latency_s.mean or 0 for seed in seeds]):.1f}"
    return mean if policy == POLICIES[0] else f"{mean}; {show_change(policy, POLICIES[0], found, seeds)}"


def show_change(policy: str, base: str, found: Found, seeds: Sequence[int]) -> str:
    pairs = [[found[name, seed].job_latency_s.mean or 0 for name in (policy, base)] for seed in seeds]
    change = [100 * (mean / before - 1) for mean, before in pairs]
    low, high = find_interval(change)
    told = f"{np.mean(change):+.1f} %"
    return told if math.isnan(low) else f"{told} ({low:+.1f} to {high:+.1f})"


def show_mean(value: Callable[[PolicySummary], float | None]) -> Callable[[str, Found, Sequence[int]], str]:
    return lambda policy, found, seeds: f"{np.mean([value(found[policy, seed]) or 0 for seed in seeds]):.2f}"


# A table each: rows are policies, columns workloads.
FIGURES: dict[str, Callable[[str, Found, Sequence[int]], str]] = {
    "mean job latency (s)": show_latency,
    "P90 job latency (s)": show_mean(lambda one: one.job_latency_s.p90),
    "mean TTFT (s)": show_mean(lambda one: one.ttft_s.mean),
    "worst TTFT (s)": show_mean(lambda one: one.ttft_s.max),
    "token hits (%)": show_mean(lambda one: 100 * (one.token_hit_rate or 0)),
    "lost jobs": show_mean(lambda one: one.failed + one.interrupted),
}


def write_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n" + "".join("| " + " | ".join(cells) + " |\n" for cells in [head, rule, *rows])


def write_choices(choices: Mapping[Case, Choice]) -> str:
    sizes = ["turns", "prompt", "reply", "end", "shared"]
    head = ["workload", "jobs", *sizes, "working set", "cache", "alone (s)", "jobs/s", "times"]
    rows = []
    for case, one in choices.items():
        chosen = (
            f"{one.working_set:,}",
            f"{one.kv_tokens:,}",
            f"{one.alone_s:.1f}",
            f"{one.rate:g}",
            f"{one.slower:.2f}",
        )
        rows.append([case.title, str(case.jobs), *one.sizes, *chosen])
    return write_table(head, rows)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the unpacked recordings")
    parser.add_argument("--only", nargs="+", default=[case.title for case in CASES], help="workloads, by their title")
    parser.add_argument("--seeds", type=read_seeds, default=range(100, 110), help="as in 100-109")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    options = read_options()
    choices: dict[Case, Choice] = {}
    found: dict[Case, Found] = {}
    for case in (case for case in CASES if case.title in options.only):
        choices[case] = read_choice(case, options.data, options.out)
        found[case] = measure(case, choices[case], options.data, options.out, options.seeds)
    sys.stdout.write(write_choices(choices))
    for title, cell in FIGURES.items():
        rows = [[policy, *(cell(policy, found[case], options.seeds) for case in found)] for policy in POLICIES]
        sys.stdout.write(write_table([title, *(case.title for case in found)], rows))
    *_, other, ours = POLICIES
    changes = [show_change(ours, other, found[case], options.seeds) for case in found]
    sys.stdout.write(write_table([f"{ours} to {other}", *(case.title for case in found)], [["", *changes]]))


if __name__ == "__main__":
    main()
