"""Writes the rows of a plan, with the known error of the simulator, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Group
from rich.table import Table
from rich.text import Text

from agentcache.plan.settings import Cell, Outcome, describe_caches
from agentcache.report.table import NO_DATA, format_number
from agentcache.report.verdict import SIMULATOR_ERROR

# All of single runs of Llama-3.1-8B and BFCL on an H200 or H100, at the knee and past it.
# Of the same, those of which P90 and first tokens were written down.
P90_SHARE, P90_PAIRS = 0.17, 100
TTFT_SHARE, TTFT_PAIRS = 0.5, 62
# Under these nothing bounds how long a request waits, and so the slowest first tokens are more of a chance.
CONTINUUM, CONTINUUM_TTFT_SHARE, CONTINUUM_TTFT_PAIRS = "continuum", 2.2, 17
# Plans of recordings of the same; all policies but continuum-code are within 4.
HIT_POINTS = 6


def find_ttft_share(policy: str) -> float:
    """Return the known error of a policy's TTFT P99."""
    return CONTINUUM_TTFT_SHARE if policy.startswith(CONTINUUM) else TTFT_SHARE


KNOWN_ERROR = (
    "Known error of the simulator beside GPUs (the ±; single runs of Llama-3.1-8B and BFCL): mean job latency is off "
    f"by up to {SIMULATOR_ERROR:.0%}, that of six seeds by 3%; P90 by up to {P90_SHARE:.0%} ({P90_PAIRS} runs, half "
    f"within 4%); TTFT P99 by up to {TTFT_SHARE:.0%} ({TTFT_PAIRS} runs, half within 8%), under Continuum's policies "
    f"by up to {CONTINUUM_TTFT_SHARE:.0%} ({CONTINUUM_TTFT_PAIRS} runs, half within 30%); hits by up to "
    f"{HIT_POINTS} points. Elsewhere it is more: hits of coding sessions 15 points, mean job latency of "
    "Qwen3-30B-A3B 9%, of Gemma-3-12B 21%, of Qwen3.5-9B 21% (hits 18 points; 51% before its steps were corrected)."
).replace("%", " %")


# Less is no difference, whatever the digits.
NOTICED = 0.005

LEGEND = (
    f"Bold: the best of a column with the same engines and caches, and what is within {NOTICED:.1%} of it. "
    "Clairvoyant: the most that could hit, whatever was evicted, if the requests came one at a time in the recorded "
    "order, in one cache as large as all of the row's. Endless cache: the same in one that nothing leaves."
).replace("%", " %")


@dataclass(frozen=True, slots=True)
class _Column:
    """A figure of an outcome, how it is shown with its policy's known error, and whether more of it is better.

    `is_higher_better` is None for what is the same under all policies.
    """

    heading: str
    value: Callable[[Outcome], float | None]
    show: Callable[[float, str], str]
    is_higher_better: bool | None


def _show_share(value: float, _: str) -> str:
    return f"{100 * value:.1f}"


def _show_seconds(value: float, share: float) -> str:
    error = value * share
    return f"{format_number(value)} ±{error:,.0f}" if error >= 100 else f"{format_number(value)} ±{error:.2g}"


_COLUMNS = (
    _Column(
        "mean job (s) ↓", lambda outcome: outcome.mean_s, lambda value, _: _show_seconds(value, SIMULATOR_ERROR), False
    ),
    _Column("P90 job (s) ↓", lambda outcome: outcome.p90_s, lambda value, _: _show_seconds(value, P90_SHARE), False),
    _Column(
        "TTFT P99 (s) ↓",
        lambda outcome: outcome.ttft_p99_s,
        lambda value, policy: _show_seconds(value, find_ttft_share(policy)),
        False,
    ),
    _Column(
        "hits (%) ↑",
        lambda outcome: None if outcome.problem else outcome.hit_rate,
        lambda value, policy: f"{_show_share(value, policy)} ±{HIT_POINTS}",
        True,
    ),
    _Column("clairvoyant (%)", lambda outcome: outcome.clairvoyant_hits, _show_share, None),
    _Column("endless cache (%)", lambda outcome: outcome.endless_hits, _show_share, None),
)
HEADINGS = ("policy", *(column.heading for column in _COLUMNS))


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure as shown; `best` of those with the same engines and caches."""

    text: str
    best: bool


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one outcome, in the order of the headings behind the policy's."""

    policy: str
    figures: tuple[Figure, ...]


def group_rows(outcomes: Sequence[Outcome]) -> dict[str, list[Row]]:
    """Make a row of each outcome, grouped by engines and caches, whose names tell these."""
    groups: dict[Cell, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(replace(outcome.cell, policy=""), []).append(outcome)
    return {f"Cache of {describe_caches(cell)}": [*_build_rows(rivals)] for cell, rivals in groups.items()}


def _build_rows(rivals: Sequence[Outcome]) -> Iterator[Row]:
    best = [_find_best(column, rivals) for column in _COLUMNS]
    for outcome in rivals:
        policy = outcome.cell.policy
        figures = []
        for column, values in zip(_COLUMNS, best, strict=True):
            value = column.value(outcome)
            text = NO_DATA if value is None else column.show(value, policy)
            figures.append(Figure(text, value in values))
        yield Row(policy, tuple(figures))


def _find_best(column: _Column, rivals: Sequence[Outcome]) -> set[float]:
    """Find the best values and those that are no different; none where all are alike."""
    values = {value for outcome in rivals if (value := column.value(outcome)) is not None}
    if not values or column.is_higher_better is None:
        return set()
    if column.is_higher_better:
        best = {value for value in values if value >= max(values) * (1 - NOTICED)}
    else:
        best = {value for value in values if value <= min(values) * (1 + NOTICED)}
    return set() if best == values else best


def terminal_table(outcomes: Sequence[Outcome], width: int) -> Group:
    """Build the table for a terminal that is `width` columns wide; with the longest name of a policy it needs 80."""
    groups = group_rows(outcomes)
    cells = [[Text(row.policy), *map(_mark, row.figures)] for rows in groups.values() for row in rows]
    widths = [
        max(*map(len, heading.split()), *(len(row[place]) for row in cells)) for place, heading in enumerate(HEADINGS)
    ]
    gap = 2 if sum(widths) + 2 * (len(widths) - 1) <= width else 1
    left = iter(cells)
    parts: list[Table | Text] = [_lay_out([], widths, gap, is_head=True)]
    for name, rows in groups.items():
        parts += [Text(name, style="dim"), _lay_out([next(left) for _ in rows], widths, gap)]
    return Group(*parts)


def _mark(figure: Figure) -> Text:
    return Text(figure.text, style="bold" if figure.best else "")


def _lay_out(rows: Sequence[Sequence[Text]], widths: Sequence[int], gap: int, *, is_head: bool = False) -> Table:
    """Lay out a part of the table, whose parts have the same columns."""
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), show_header=is_head)
    for place, (heading, width) in enumerate(zip(HEADINGS, widths, strict=True)):
        table.add_column(heading, width=width, justify="right" if place else "left")
    for row in rows:
        table.add_row(*row)
    return table
