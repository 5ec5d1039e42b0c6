"""The rows of a plan as text: one definition for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.table import Table

from agentcache.plan.cell import Cell, Outcome
from agentcache.plan.known_error import HIT_POINTS, MEAN_SHARE
from agentcache.report.table import NO_DATA

COLUMNS = (
    "engines",
    "cache",
    "DRAM",
    "policy",
    "mean job (s) ↓",
    "P90 job (s) ↓",
    "TTFT P99 (s) ↓",
    "hits (%) ↑",
    "endless cache (%)",
)
# Engines and caches.
GROUPED_BY = 3


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of one outcome; `best`: its mean is the lowest of those with the same engines and caches."""

    cells: tuple[str, ...]
    best: bool


def build_rows(outcomes: Sequence[Outcome]) -> Iterator[Row]:
    """Build a row for each outcome."""
    lowest: dict[Cell, float] = {}
    for outcome in outcomes:
        if outcome.mean_s is not None:
            rivals = replace(outcome.cell, policy="")
            lowest[rivals] = min(outcome.mean_s, lowest.get(rivals, outcome.mean_s))
    for outcome in outcomes:
        cell = outcome.cell
        yield Row(
            (
                str(cell.engines),
                f"{cell.kv_tokens:,}",
                f"{cell.cpu_tokens:,}" if cell.cpu_tokens else NO_DATA,
                cell.policy,
                _with_error(outcome.mean_s),
                _seconds(outcome.p90_s),
                _seconds(outcome.ttft_p99_s),
                NO_DATA if outcome.problem else f"{outcome.hit_rate:.1%} ±{HIT_POINTS}".replace("%", ""),
                f"{outcome.most_hits:.1%}".replace("%", ""),
            ),
            best=outcome.mean_s is not None and outcome.mean_s == lowest[replace(cell, policy="")],
        )


def group_rows(outcomes: Sequence[Outcome]) -> dict[str, list[Row]]:
    """Group the rows by their engines and caches, which the cells then leave out."""
    groups: dict[str, list[Row]] = {}
    for row in build_rows(outcomes):
        engines, cache, host, *cells = row.cells
        name = f"Cache of {cache} tokens" + ("" if host == NO_DATA else f", and {host} in DRAM")
        if engines != "1":
            name += f", in each of {engines} engines"
        groups.setdefault(name, []).append(Row(tuple(cells), row.best))
    return groups


def terminal_table(outcomes: Sequence[Outcome]) -> Table:
    """Build the table for the terminal."""
    table = Table(box=None, pad_edge=False)
    first = 0 if any(outcome.cell.engines > 1 for outcome in outcomes) else 1
    for column in COLUMNS[first:]:
        table.add_column(column, justify="left" if column == "policy" else "right", no_wrap=column == "policy")
    before = None
    for row in build_rows(outcomes):
        if before is not None and before != row.cells[:GROUPED_BY]:
            table.add_section()
        before = row.cells[:GROUPED_BY]
        table.add_row(*row.cells[first:], style="bold" if row.best else None)
    return table


def _seconds(value: float | None) -> str:
    return NO_DATA if value is None else f"{value:.3g}"


def _with_error(value: float | None) -> str:
    return NO_DATA if value is None else f"{value:.3g} ±{value * MEAN_SHARE:.2g}"
