"""Job latency and worst TTFT by policy, a dot a run: for replays of one setting with several seeds.

python benchmarks/seeds_plot.py RUN_FOLDER [RUN_FOLDER ...] --out FILE.png
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

PANELS = {
    "Mean job latency (s)": lambda figures: figures["job_latency_s"]["mean"],
    "Worst TTFT (s)": lambda figures: figures["ttft_s"]["max"],
    "Tokens recomputed (thousands)": lambda figures: figures["recomputed_tokens"] / 1000,
}


def read_policies(folders: Sequence[Path]) -> dict[str, list[dict[str, Any]]]:
    """The figures of each policy, one for each run that it finished."""
    policies: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for folder in folders:
        for policy, figures in json.loads((folder / "summary.json").read_text())["policies"].items():
            if not figures["interrupted"]:
                policies[policy].append(figures)
    return dict(sorted(policies.items(), key=lambda item: -mean(map(PANELS["Mean job latency (s)"], item[1]))))


def draw(policies: dict[str, list[dict[str, Any]]], path: Path) -> None:
    figure = Figure(figsize=(11, 0.5 * len(policies) + 1.4), layout="constrained")
    for axes, (title, read) in zip(figure.subplots(1, len(PANELS), sharey=True), PANELS.items(), strict=True):
        for row, runs in enumerate(policies.values()):
            values = [read(figures) for figures in runs]
            axes.barh(row, mean(values), color="#9bb8d3", height=0.6)
            axes.plot(values, [row] * len(values), "o", color="#1f3b57", markersize=4)
        axes.set_title(title, fontsize=10)
        axes.set_yticks(range(len(policies)), policies)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_FOLDER")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.png")
    arguments = parser.parse_args()
    draw(read_policies(arguments.runs), arguments.out)


if __name__ == "__main__":
    main()
