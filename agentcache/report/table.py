"""Defines the metrics of the table of policies, once for the page and the terminal.

Metrics are rows and policies columns; every policy after the first also has its ratio to the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.table import Table
from rich.text import Text

from agentcache.report.summary import PolicySummary, Summary

NO_DATA = "–"
LEGEND = "↓ lower is better, ↑ higher is better; – no data."
# Value and ratio of three policies fit a terminal of 80 columns.
_POLICIES_A_BLOCK = 3


@dataclass(frozen=True, slots=True)
class Metric:
    """A row of the table. A metric with a better direction has a best value and ratios; a plain count has neither.

    `rare` is left out where no policy has a value, `of_jobs` in closed loops.
    """

    name: str
    unit: str
    value: Callable[[PolicySummary], float | None]
    format: Callable[[float], str]
    better: Literal["lower", "higher"] | None
    rare: bool = False
    of_jobs: bool = False

    @property
    def header(self) -> str:
        """Return the row's name with its unit and an arrow in the better direction."""
        unit = f" ({self.unit})" if self.unit else ""
        return self.name + unit + {"lower": " ↓", "higher": " ↑", None: ""}[self.better]


@dataclass(frozen=True, slots=True)
class Cell:
    """One value as shown. `ratio` is empty where there is none; `best` marks the best of a row that has a best."""

    text: str
    ratio: str
    best: bool


@dataclass(frozen=True, slots=True)
class Row:
    """A metric and its cells, in the order of the policies."""

    metric: Metric
    cells: tuple[Cell, ...]


def format_number(value: float) -> str:
    """Format with three significant digits, mostly without an exponent: 0.0412, 41.2, 1,234."""
    # From 99.95 on, three significant digits leave no decimals.
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}" if value else "0"


def show_share(part: int, whole: int) -> str:
    """Format a share in percent; that of nothing is no data."""
    return f"{100 * part / whole:.1f} %" if whole else NO_DATA


def _format_count(value: float) -> str:
    return f"{value:,.0f}"


def _format_percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _of_loop(
    name: str,
    unit: str,
    part: str,
    format_value: Callable[[float], str] = format_number,
    better: Literal["lower", "higher"] = "higher",
) -> Metric:
    def value(policy: PolicySummary) -> float | None:
        return getattr(policy.throughput, part) if policy.throughput else None

    return Metric(name, unit, value, format_value, better, rare=True)


def _of_wait(reason: str) -> Metric:
    return Metric(f"waited: {reason}", "s", lambda p: (p.waits_s or {}).get(reason), format_number, None)


def _of_tenant(name: str) -> Metric:
    def value(policy: PolicySummary) -> float | None:
        return policy.tenants.job_latency_s.get(name) if policy.tenants else None

    return Metric(f"of tenant {name}", "s", value, format_number, "lower")


_LATENCIES = (
    _of_loop("Throughput per GPU", "tok/s", "total_tok_s"),
    _of_loop("Input per GPU", "tok/s", "input_tok_s"),
    _of_loop("Output per GPU", "tok/s", "output_tok_s"),
    _of_loop("Turns a minute", "", "turns_per_min"),
    _of_loop("GPU-seconds a job", "s", "gpu_s_per_job", better="lower"),
    _of_loop("Interactivity, P50", "tok/s/user", "interactivity_p50"),
    _of_loop("Interactivity, P90", "tok/s/user", "interactivity_p90"),
    _of_loop("with the TTFT, P50", "tok/s/user", "normalized_p50"),
    _of_loop("with the TTFT, P90", "tok/s/user", "normalized_p90"),
    Metric("Job latency, mean", "s", lambda p: p.job_latency_s.mean, format_number, "lower", of_jobs=True),
    Metric("Job latency, P50", "s", lambda p: p.job_latency_s.p50, format_number, "lower", of_jobs=True),
    Metric("Job latency, P90", "s", lambda p: p.job_latency_s.p90, format_number, "lower", of_jobs=True),
    Metric("Job latency, P95", "s", lambda p: p.job_latency_s.p95, format_number, "lower", of_jobs=True),
    Metric("Job latency, P99", "s", lambda p: p.job_latency_s.p99, format_number, "lower", of_jobs=True),
    Metric("Job latency, worst", "s", lambda p: p.job_latency_s.max, format_number, "lower", of_jobs=True),
    Metric("TTFT, mean", "s", lambda p: p.ttft_s.mean, format_number, "lower"),
    Metric("TTFT, P99", "s", lambda p: p.ttft_s.p99, format_number, "lower"),
)
_OTHERS = (
    Metric(
        "Jain's index of tenants",
        "",
        lambda p: p.tenants.jain_index if p.tenants else None,
        format_number,
        None,
        rare=True,
    ),
    Metric("TPOT, mean", "s", lambda p: p.tpot_s.mean, format_number, "lower"),
    Metric("Makespan", "s", lambda p: p.makespan_s, format_number, "lower"),
    Metric("Token hit rate", "%", lambda p: p.token_hit_rate, _format_percent, "higher"),
    Metric("hit on the GPU", "%", lambda p: p.gpu_hit_rate, _format_percent, None, rare=True),
    Metric("fetched from the CPU cache", "%", lambda p: p.host_hit_rate, _format_percent, None, rare=True),
    Metric("fetched from disk", "%", lambda p: p.disk_hit_rate, _format_percent, None, rare=True),
    _of_loop("of an infinite cache", "%", "infinite_hit_rate", _format_percent),
    Metric("Block hit rate", "%", lambda p: p.block_hit_rate, _format_percent, "higher"),
    Metric("Request hit rate", "%", lambda p: p.request_hit_rate, _format_percent, "higher"),
    Metric("Tokens recomputed", "", lambda p: p.recomputed_tokens, _format_count, "lower"),
    Metric("at another engine", "", lambda p: p.elsewhere_tokens, _format_count, "lower", rare=True),
    Metric("Prefill, modelled", "s", lambda p: p.prefill_s, format_number, "lower", rare=True),
    Metric("Preemptions", "", lambda p: p.preemptions, _format_count, "lower"),
    Metric("Blocks evicted", "", lambda p: (p.evictions or {}).get("capacity"), _format_count, "lower", rare=True),
    Metric("Busiest engine over the mean", "", lambda p: p.busiest_over_mean, format_number, "lower", rare=True),
    Metric("Jobs finished", "", lambda p: p.finished, _format_count, None),
    Metric("Jobs failed", "", lambda p: p.failed, _format_count, None),
    Metric("Jobs interrupted", "", lambda p: p.interrupted, _format_count, None),
)


def build_rows(policies: Mapping[str, PolicySummary]) -> list[Row]:
    """Build the table's body, one row a metric."""
    reasons = dict.fromkeys(reason for policy in policies.values() for reason in policy.waits_s or ())
    shown = [policy.tenants for policy in policies.values() if policy.tenants]
    tenants = dict.fromkeys(name for figures in shown for name in figures.job_latency_s)
    metrics = (*_LATENCIES, *map(_of_tenant, tenants), *map(_of_wait, reasons), *_OTHERS)
    values = [(metric, [metric.value(policy) for policy in policies.values()]) for metric in metrics]
    is_loop = any(policy.throughput for policy in policies.values())
    return [_build_row(metric, row) for metric, row in values if _is_shown(metric, row, is_loop)]


def _is_shown(metric: Metric, values: Sequence[float | None], is_loop: bool) -> bool:
    return not (metric.rare and all(value is None for value in values)) and not (metric.of_jobs and is_loop)


def _build_row(metric: Metric, values: list[float | None]) -> Row:
    best = _best_text(metric, values)
    cells = []
    for index, value in enumerate(values):
        text = NO_DATA if value is None else metric.format(value)
        ratio = _format_ratio(value, values[0]) if metric.better and index > 0 else ""
        cells.append(Cell(text, ratio, text == best))
    return Row(metric, tuple(cells))


def _best_text(metric: Metric, values: list[float | None]) -> str | None:
    """Find the best value as shown, so that values that read the same are equally good; None where all do."""
    known = [value for value in values if value is not None]
    if metric.better is None or len({metric.format(value) for value in known}) < 2:
        return None
    return metric.format(min(known) if metric.better == "lower" else max(known))


def _format_ratio(value: float | None, first: float | None) -> str:
    return NO_DATA if value is None or not first else f"{value / first:.2f}×"


def terminal_table(summary: Summary) -> Table:
    """Lay the table out for a terminal of 80 columns: policies in blocks below each other, ratios beside the values."""
    names = list(summary.policies)
    rows = build_rows(summary.policies)
    blocks = Table.grid()
    blocks.add_column()
    for first in range(0, len(names), _POLICIES_A_BLOCK):
        blocks.add_row(_terminal_block(names, rows, range(len(names))[first : first + _POLICIES_A_BLOCK]))
    blocks.add_row(Text(" ".join(caption(names)), style="dim"))
    return blocks


def _terminal_block(names: list[str], rows: list[Row], indices: range) -> Table:
    block = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    block.add_column("", no_wrap=True)
    for index in indices:
        # Text, as a name in square brackets would be taken for markup.
        block.add_column(Text(names[index]), justify="right", overflow="fold")
    for row in rows:
        block.add_row(row.metric.header, *(_terminal_cell(row.cells[index], index) for index in indices))
    return block


def _terminal_cell(cell: Cell, index: int) -> Text:
    text = Text(cell.text, style="bold" if cell.best else "")
    return text if index == 0 else text.append(f"{cell.ratio:>7}", style="dim")


def caption(names: list[str]) -> Iterator[str]:
    """Explain what the marks in the table mean, one sentence at a time."""
    yield LEGEND
    if len(names) > 1:
        yield f"Bold: best of the row. ×: ratio to {names[0]}."
