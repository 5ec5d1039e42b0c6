"""The front of mean job latency against worst TTFT, a panel a load: means over seeds with 95 % intervals.

python benchmarks/front_plot.py RUNS --out docs/front.png

RUNS has a folder for each arm, named as the arm is to be called, and in it finished runs of one policy each, in
folders that end in "rRATE-sSEED". All arms of a load must have the same seeds, and one of them must be "vllm".
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from compare import find_interval
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# What the others are compared with.
BASE = "vllm"
# Of a load: by arm and seed, the worst TTFT and the mean job latency.
Points = Mapping[str, Mapping[int, tuple[float, float]]]


def read_loads(folder: Path) -> dict[float, Points]:
    """Read all runs. Raises SystemExit where arms have other seeds than others, there is no BASE, or jobs were lost."""
    loads: dict[float, dict[str, dict[int, tuple[float, float]]]] = defaultdict(lambda: defaultdict(dict))
    for path in sorted(folder.glob("*/*/summary.json")):
        named = re.search(r"r([\d.]+)-s(\d+)$", path.parent.name)
        if named is None:
            raise SystemExit(f"{path.parent}: no run of the front; its name must end in rRATE-sSEED")
        (figures,) = json.loads(path.read_text())["policies"].values()
        if figures["failed"] or figures["interrupted"]:
            raise SystemExit(f"{path.parent}: jobs were lost")
        point = figures["ttft_s"]["max"], figures["job_latency_s"]["mean"]
        loads[float(named[1])][path.parent.parent.name][int(named[2])] = point
    for rate, arms in loads.items():
        if BASE not in arms:
            raise SystemExit(f"{rate:g} jobs/s: no arm {BASE}, with which the others are compared")
        if len({frozenset(points) for points in arms.values()}) > 1:
            seeds = {arm: sorted(points) for arm, points in arms.items()}
            raise SystemExit(f"{rate:g} jobs/s: not the same seeds for all: {seeds}")
    return dict(sorted(loads.items()))


def find_range(values: Sequence[float]) -> tuple[float, list[list[float]]]:
    """Return the mean, and how far its 95 % interval goes below and above, as matplotlib wants it."""
    middle, (low, high) = mean(values), find_interval(values)
    return middle, [[max(0.0, middle - low)], [max(0.0, high - middle)]]


def compare(points: Mapping[int, tuple[float, float]], base: Mapping[int, tuple[float, float]]) -> list[float]:
    """Return the mean job latency over that of `base`, seed by seed: seeds differ more than arms do."""
    return [point[1] / base[seed][1] for seed, point in points.items()]


def draw_load(axes: Axes, arms: Points) -> None:
    """Draw one panel; arms called "patience ..." are joined by a line, shortest first."""
    line = []
    order = sorted(arms, key=lambda arm: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", arm)])
    for arm, marker in zip(order, itertools.cycle("osD^v<>pP*Xhd"), strict=False):
        worst, worst_error = find_range([point[0] for point in arms[arm].values()])
        job, job_error = find_range(compare(arms[arm], arms[BASE]))
        style = {"fmt": marker, "elinewidth": 0.5, "markersize": 7, "label": arm}
        axes.errorbar(worst, job, job_error, worst_error, **style)
        if arm.startswith("patience "):
            line.append((worst, job))
    axes.plot(*zip(*line, strict=True), color="tab:gray", linewidth=0.8, zorder=0)
    axes.set_xlabel("worst TTFT (s), mean over seeds")
    axes.set_ylabel(f"mean job latency, times {BASE}'s, seed by seed")
    axes.grid(alpha=0.3)


def draw(loads: Mapping[float, Points], path: Path) -> None:
    figure = Figure(figsize=(6 * len(loads), 5), layout="constrained")
    panels = figure.subplots(1, len(loads), squeeze=False)[0]
    for axes, (rate, arms) in zip(panels, loads.items(), strict=True):
        draw_load(axes, arms)
        seeds = sorted(next(iter(arms.values())))
        axes.set_title(f"{rate:g} jobs/s, seeds {', '.join(map(str, seeds))}", fontsize=9)
    panels[0].legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, metavar="RUNS")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.png")
    arguments = parser.parse_args()
    draw(read_loads(arguments.runs), arguments.out)


if __name__ == "__main__":
    main()
