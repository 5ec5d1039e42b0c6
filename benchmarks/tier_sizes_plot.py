"""Mean job latency and the slowest first tokens by how much of the CPU cache holds KV, a line a policy.

python benchmarks/tier_sizes_plot.py docs/results/host-memory.md --out docs/host-memory-sizes.png

Takes the table of the page's section "Four sizes, simulated".
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from agentcache.report.figure import add_legend, create_figure, in_style, pick_mark

DOTS_PER_INCH = 110
GPU_TOKENS = 500_000
COLUMNS = {"mean job latency (s)": "job_s", "TTFT P99 (s)": "ttft_s"}


class Row(NamedTuple):
    """A row of the table: the mean of its seeds. `share` is the CPU cache over the GPU's cache."""

    rate: str
    share: float
    policy: str
    job_s: float
    ttft_s: float


def read_rows(page: str) -> Iterator[Row]:
    """Read the table, in which a cell that is empty has what stands above it."""
    section = page.partition("\n## Four sizes, simulated\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    rate = tokens = ""
    for line in lines[2:]:
        cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
        rate, tokens = cells[0] or rate, cells[1] or tokens
        share = 0.0 if tokens == "none" else int(tokens.replace(",", "")) / GPU_TOKENS
        yield Row(rate, share, cells[2], float(cells[3]), float(cells[6].partition(";")[2]))


@in_style
def plot_sizes(rows: list[Row]) -> Figure:
    """Plot a row of panels a load, all with the same sizes, which stand at equal distances."""
    rates = list(dict.fromkeys(row.rate for row in rows))
    policies = list(dict.fromkeys(row.policy for row in rows if row.share))
    shares = sorted({row.share for row in rows})
    figure = create_figure(3.0 * len(rates))
    lines: dict[str, Line2D] = {}
    for panels, rate in zip(figure.subplots(len(rates), len(COLUMNS), squeeze=False), rates, strict=True):
        for axes, (title, field) in zip(panels, COLUMNS.items(), strict=True):
            axes.set_title(f"{rate} jobs/s: {title}")
            _label(axes, shares)
            for index, policy in enumerate(policies):
                own = [row for row in rows if row.rate == rate and _is_of(row, policy)]
                mark = pick_mark(index)
                (lines[policy],) = axes.plot(
                    [shares.index(row.share) for row in own],
                    [getattr(row, field) for row in own],
                    color=mark.colour,
                    linestyle=mark.line_style,
                    marker=mark.marker,
                )
            axes.set_ylim(bottom=0)
    add_legend(figure, list(lines.values()), list(lines))
    return figure


def _is_of(row: Row, policy: str) -> bool:
    """Tell whether the row is one of the policy's. Without a tier there are not two ways of storing."""
    return row.policy == policy or (not row.share and policy.startswith(row.policy))


def _label(axes: Axes, shares: list[float]) -> None:
    axes.set_xticks(range(len(shares)), ["none", *(f"{share:g} ×" for share in shares[1:])])
    axes.set_xlabel("host's memory, times the GPU's cache")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("page", type=Path, metavar="PAGE.md")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.png")
    arguments = parser.parse_args()
    rows = list(read_rows(arguments.page.read_text()))
    plot_sizes(rows).savefig(arguments.out, dpi=DOTS_PER_INCH, facecolor="white")


if __name__ == "__main__":
    main()
