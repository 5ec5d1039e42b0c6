"""Shows on the terminal what a report says, and where it is."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentcache.report.content import HTML_FILE, Report, differences, headline
from agentcache.report.events import RunRecord
from agentcache.report.lane_points import LanePoint, build_point_rows, point_headers
from agentcache.report.summary import Summary
from agentcache.report.table import terminal_table

_NAME_WIDTH = 22


def show_report(report: Report, folder: Path) -> None:
    """Print the points of closed loops under rising load, or else the table of policies, and what it comes to."""
    table = points_table(report.points) if report.points else terminal_table(report.summary)
    _show(table, folder, [*differences(report), *_list_losses(report.summary)], headline(report))


def show_summary(summary: Summary, folder: Path) -> None:
    """Print the table of policies, and what it comes to."""
    _show(terminal_table(summary), folder, _list_losses(summary), summary.verdict)


def points_table(points: Sequence[LanePoint]) -> Table:
    """Lay the points out for a terminal of 80 columns, those on the front in bold."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in point_headers(narrow=True):
        if header == "policy":
            # Long ones break rather than push figures out of the terminal.
            table.add_column(
                header, min_width=min(_NAME_WIDTH, max(len(point.line) for point in points)), overflow="fold"
            )
        else:
            table.add_column(header, justify="right", overflow="fold")
    for row in build_point_rows(points, narrow=True):
        # Text, as a name in square brackets would be taken for markup.
        table.add_row(*(Text(cell) for cell in row.cells), style="bold" if row.on_front else "")
    table.caption = "tok/s/user: with the TTFT, P50. P99: of the TTFT. Hits, and those of an infinite cache: in %."
    table.caption_justify = "left"
    return table


def _list_losses(summary: Summary) -> list[str]:
    """List what of the workloads is missing, once where several runs are of the same."""
    records = [summary.run] if isinstance(summary.run, RunRecord) else summary.run.values()
    return [*dict.fromkeys(loss for record in records for loss in record.losses)]


def _show(table: Table, folder: Path, doubts: Sequence[str], sentence: str | None) -> None:
    console = Console()
    console.print(table)
    print_lines(console, (*doubts, f"report: {folder / HTML_FILE}", sentence))


def print_lines(console: Console, lines: Iterable[str | None]) -> None:
    """Print what is not None, broken at blanks alone: a path stays whole, and on the line of its label."""
    for line in lines:
        if line is not None:
            is_path = line.count(" ") == 1
            text = (
                line if is_path else textwrap.fill(line, console.width, break_long_words=False, break_on_hyphens=False)
            )
            console.print(text, markup=False, highlight=False, soft_wrap=True)
