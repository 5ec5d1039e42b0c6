"""Closed loops of several seeds in one plot: throughput per GPU over interactivity, both means over the seeds.

python benchmarks/lanes_plot.py RUNS --out docs/closed-loop.png

RUNS has a folder for each arm, named as the line is to be called, and in it finished runs of one policy each, in
folders that end in "lanes-N-sSEED". All numbers of lanes of an arm must have the same seeds.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from pathlib import Path
from statistics import mean

from agentcache.report.lane_points import LanePoint
from agentcache.report.plots import plot_front
from agentcache.report.summary import PolicySummary, Summary

DOTS_PER_INCH = 110


def read_arms(folder: Path) -> dict[tuple[str, int], dict[int, PolicySummary]]:
    """Read the figures of each seed by arm and lanes. Raises SystemExit where a run has none, or seeds are missing."""
    arms: dict[tuple[str, int], dict[int, PolicySummary]] = defaultdict(dict)
    for path in sorted(folder.glob("*/*/summary.json")):
        named = re.search(r"lanes-(\d+)-s(\d+)$", path.parent.name)
        if named is None:
            raise SystemExit(f"{path.parent}: the folder's name must end in lanes-N-sSEED")
        (figures,) = Summary.model_validate_json(path.read_text()).policies.values()
        if figures.throughput is None:
            raise SystemExit(f"{path.parent}: no closed loop, or broken off before it was measured")
        arms[path.parent.parent.name, int(named[1])][int(named[2])] = figures
    if len({frozenset(seeds) for seeds in arms.values()}) != 1:
        raise SystemExit(f"{folder}: no runs, or not the same seeds: { {key: sorted(arms[key]) for key in arms} }")
    return arms


def average(seeds: dict[int, PolicySummary]) -> PolicySummary:
    """Return the figures of the first seed, with throughput and interactivity of the mean of all."""
    figures = next(iter(seeds.values()))
    loops = [each.throughput for each in seeds.values() if each.throughput]
    means = {
        "total_tok_s": mean(loop.total_tok_s for loop in loops),
        "normalized_p50": mean(loop.normalized_p50 or 0.0 for loop in loops),
    }
    return figures.model_copy(update={"throughput": loops[0].model_copy(update=means)})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, metavar="RUNS")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.png")
    arguments = parser.parse_args()
    arms = sorted(read_arms(arguments.runs).items())
    points = [LanePoint(arm, lanes, average(seeds)) for (arm, lanes), seeds in arms]
    plot_front(points).savefig(arguments.out, dpi=DOTS_PER_INCH, facecolor="white")


if __name__ == "__main__":
    main()
