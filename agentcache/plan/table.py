"""The rows of a plan as text: one definition for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table

from agentcache.plan.cell import Outcome
from agentcache.plan.known_error import HIT_POINTS, MEAN_SHARE
from agentcache.report.table import NO_DATA

COLUMNS = (
    "cache",
    "DRAM",
    "policy",
    "mean job (s) ↓",
    "P90 job (s) ↓",
    "TTFT P99 (s) ↓",
    "hits (%) ↑",
    "endless cache (%)",
)


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of one outcome; `best`: its mean is the lowest of those with the same caches."""

    cells: tuple[str, ...]
    best: bool


def build_rows(outcomes: Sequence[Outcome]) -> Iterator[Row]:
    """Build a row for each outcome of one engine."""
    lowest: dict[tuple[int, int], float] = {}
    for outcome in outcomes:
        if outcome.mean_s is not None:
            caches = outcome.cell.kv_tokens, outcome.cell.cpu_tokens
            lowest[caches] = min(outcome.mean_s, lowest.get(caches, outcome.mean_s))
    for outcome in outcomes:
        cell = outcome.cell
        yield Row(
            (
                f"{cell.kv_tokens:,}",
                f"{cell.cpu_tokens:,}" if cell.cpu_tokens else NO_DATA,
                cell.policy,
                _with_error(outcome.mean_s),
                _seconds(outcome.p90_s),
                _seconds(outcome.ttft_p99_s),
                NO_DATA if outcome.problem else f"{outcome.hit_rate:.1%} ±{HIT_POINTS}".replace("%", ""),
                f"{outcome.most_hits:.1%}".replace("%", ""),
            ),
            best=outcome.mean_s is not None and outcome.mean_s == lowest[cell.kv_tokens, cell.cpu_tokens],
        )


def group_rows(outcomes: Sequence[Outcome]) -> dict[str, list[Row]]:
    """Group the rows by their caches, which the cells then leave out."""
    groups: dict[str, list[Row]] = {}
    for row in build_rows(outcomes):
        cache, host, *cells = row.cells
        name = f"Cache of {cache} tokens" + ("" if host == NO_DATA else f", and {host} in DRAM")
        groups.setdefault(name, []).append(Row(tuple(cells), row.best))
    return groups


def terminal_table(outcomes: Sequence[Outcome]) -> Table:
    """Build the table for the terminal."""
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "policy" else "right", no_wrap=column == "policy")
    before = None
    for row in build_rows(outcomes):
        if before is not None and before != row.cells[:2]:
            table.add_section()
        before = row.cells[:2]
        table.add_row(*row.cells, style="bold" if row.best else None)
    return table


def _seconds(value: float | None) -> str:
    return NO_DATA if value is None else f"{value:.3g}"


def _with_error(value: float | None) -> str:
    return NO_DATA if value is None else f"{value:.3g} ±{value * MEAN_SHARE:.2g}"
