"""Throughput per GPU against interactivity, as the load rises: closed loops of more and more lanes.

python benchmarks/concurrency.py --lanes 4 8 16 --arm vllm --arm agentcache --out runs/lanes --plot lanes.png \
  -- simulate agent_traces:TRACES --max-context 131072 --kv-tokens 500000 --duration 900

An arm is a policy and the knobs that it runs with, as in "agentcache pins.budget=0.5". A command whose folder holds a
summary is not run again, so a sweep that broke off goes on. A row is on the front if no other has more of both.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare import Arm
from matplotlib.figure import Figure
from rich.progress import track
from summaries import measure

from agentcache.report.figure import create_figure, in_style, pick_mark

# What is plotted: with the time to the first token in it, as that is what a cache changes.
USER, GPU = "normalized_p50", "total_tok_s"
COLUMNS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "total tok/s/GPU": lambda one: f"{one['throughput']['total_tok_s']:,.0f}",
    "input": lambda one: f"{one['throughput']['input_tok_s']:,.0f}",
    "output": lambda one: f"{one['throughput']['output_tok_s']:,.1f}",
    "tok/s/user P50": lambda one: f"{one['throughput']['interactivity_p50']:.1f}",
    "P90": lambda one: f"{one['throughput']['interactivity_p90']:.1f}",
    "with TTFT P50": lambda one: f"{one['throughput']['normalized_p50']:.1f}",
    "with TTFT P90": lambda one: f"{one['throughput']['normalized_p90']:.1f}",
    "TTFT mean (s)": lambda one: f"{one['ttft_s']['mean']:.2f}",
    "TTFT P99 (s)": lambda one: f"{one['ttft_s']['p99']:.1f}",
    "hits (%)": lambda one: f"{100 * one['token_hit_rate']:.1f}",
    "infinite cache (%)": lambda one: f"{100 * one['throughput']['infinite_hit_rate']:.1f}",
    "requests": lambda one: f"{one['turns']:,}",
    "failed": lambda one: str(one["failed"]),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One command: arms of the same knobs, with so many lanes."""

    arms: tuple[Arm, ...]
    lanes: int

    @property
    def folder(self) -> str:
        words = [f"lanes{self.lanes}", *self.arms[0].knobs, *(arm.policy for arm in self.arms)]
        return "-".join("".join(c if c.isalnum() else "." for c in word) for word in words)

    def arguments(self) -> list[str]:
        policies = [word for arm in self.arms for word in ("--policy", arm.policy)]
        knobs = [word for knob in self.arms[0].knobs for word in ("--agentcache", knob)]
        return [*policies, *knobs, "--concurrency", str(self.lanes)]


def plan_runs(arms: Sequence[Arm], lanes: Sequence[int]) -> Iterator[Run]:
    """Yield one for each number of lanes and set of knobs."""
    groups: dict[tuple[str, ...], list[Arm]] = {}
    for arm in arms:
        groups.setdefault(arm.knobs, []).append(arm)
    for count in lanes:
        yield from (Run(tuple(group), count) for group in groups.values())


def find_front(points: Mapping[tuple[str, int], Mapping[str, Any]]) -> set[tuple[str, int]]:
    """Find the points than which no other has more throughput and more interactivity."""
    values = {key: (one["throughput"][GPU], one["throughput"][USER]) for key, one in points.items()}

    def is_beaten(key: tuple[str, int]) -> bool:
        gpu, user = values[key]
        return any(g >= gpu and u >= user and (g, u) != (gpu, user) for g, u in values.values())

    return {key for key in points if not is_beaten(key)}


def write_table(points: Mapping[tuple[str, int], Mapping[str, Any]]) -> str:
    """Markdown, a row a point, by arm and lanes."""
    front = find_front(points)
    head = ["lanes", "arm", *COLUMNS, "front"]
    rows = [
        [str(lanes), arm, *(column(one) for column in COLUMNS.values()), "yes" if (arm, lanes) in front else ""]
        for (arm, lanes), one in sorted(points.items(), key=lambda item: item[0][1])
    ]
    rule = ["---:", "---", *["---:"] * (len(head) - 2)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, rule, *rows])


@in_style
def plot(points: Mapping[tuple[str, int], Mapping[str, Any]]) -> Figure:
    """Plot throughput over interactivity, a line an arm, a point a number of lanes."""
    figure = create_figure(5.0)
    axes = figure.add_subplot(
        xlabel="interactivity: output tokens per second and user, first token included (P50)",
        ylabel="throughput: tokens per second and GPU",
    )
    for index, arm in enumerate(dict.fromkeys(arm for arm, _ in points)):
        mark = pick_mark(index)
        own = sorted((lanes, one["throughput"]) for (name, lanes), one in points.items() if name == arm)
        x, y = [one[USER] for _, one in own], [one[GPU] for _, one in own]
        axes.plot(x, y, color=mark.colour, linestyle=mark.line_style, marker=mark.marker, label=arm)
        for (lanes, _), at_x, at_y in zip(own, x, y, strict=True):
            axes.annotate(str(lanes), (at_x, at_y), textcoords="offset points", xytext=(5, 4), color=mark.colour)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(title="at each point: lanes")
    return figure


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, nargs="+", required=True)
    parser.add_argument("--arm", dest="arms", action="append", type=Arm, required=True, help='"POLICY KNOB=VALUE ..."')
    parser.add_argument("--at-once", type=int, default=1, help="commands side by side, of simulations")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plot", type=Path, help="picture to write")
    parser.add_argument("command", nargs="+", help="behind --: simulate or replay, with what all runs share")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    runs = list(plan_runs(options.arms, options.lanes))
    with ThreadPoolExecutor(options.at_once) as pool:
        # More threads than one for each simulation would only wait for each other.
        alone = {"OMP_NUM_THREADS": "1"}
        work = pool.map(
            lambda run: measure([*options.command, *run.arguments()], options.out / run.folder, alone), runs
        )
        results = list(track(work, "commands", total=len(runs)))
    points = {
        (arm.name, run.lanes): result[arm.policy] for run, result in zip(runs, results, strict=True) for arm in run.arms
    }
    sys.stdout.write(write_table(points) + "\n")
    if options.plot:
        plot(points).savefig(options.plot, dpi=110)


if __name__ == "__main__":
    main()
