"""The closed loops of one seed that GPUs measured, in one plot: throughput per GPU over interactivity.

python benchmarks/measured_lanes_plot.py docs/results/closed-loop.md --out docs/closed-loop-gpu.png

Takes the first two tables of the page's section "On GPUs": with the CPU cache, and without. Rows that were only
simulated are left out.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from agentcache.report.lane_points import LanePoint
from agentcache.report.plots import plot_front
from agentcache.report.summary import PolicySummary, Throughput

DOTS_PER_INCH = 110


def read_tables(page: str) -> list[list[str]]:
    """Return the tables of the section, each as its lines."""
    section = page.partition("\n## On GPUs\n")[2].partition("\n## ")[0]
    return [
        list(lines) for is_table, lines in groupby(section.splitlines(), lambda line: line.startswith("|")) if is_table
    ]


def read_points(table: list[str], suffix: str) -> Iterator[LanePoint]:
    """Read a point of each measured row: lanes, row, total tok/s (simulated), tok/s/user (simulated), and others."""
    for line in table[2:]:
        lanes, row, total, user, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        if "simulated only" not in row:
            name = re.sub(r"(, lazy)?(; \d+ s)?$", "", row).replace("`", "")
            yield make_point(name + suffix, int(lanes), _read(total), _read(user))


def _read(cell: str) -> float:
    """Read "**36,396** (37,015)": what was measured, not what was simulated."""
    return float(cell.partition("(")[0].strip(" *").replace(",", ""))


def make_point(name: str, lanes: int, total_tok_s: float, user_tok_s: float) -> LanePoint:
    """Make a point that has nothing but its place."""
    loop = Throughput.model_construct(total_tok_s=total_tok_s, normalized_p50=user_tok_s)
    return LanePoint(name, lanes, PolicySummary.model_construct(throughput=loop))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("page", type=Path, metavar="PAGE.md")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.png")
    arguments = parser.parse_args()
    tables = read_tables(arguments.page.read_text())
    points = [*read_points(tables[0], " + host's memory"), *read_points(tables[1], "")]
    plot_front(points).savefig(arguments.out, dpi=DOTS_PER_INCH, facecolor="white")


if __name__ == "__main__":
    main()
