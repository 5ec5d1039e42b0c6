"""Plots predicted against measured seconds, and the link's speed by the blocks that are copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agentcache.policy.cost import FittedCostModel
from agentcache.policy.link_profile import LinkSpeed
from agentcache.policy.step_fit import FittedStepCost, MeasuredStep
from agentcache.profile.link_rows import FittedLink, predict_s
from agentcache.report.figure import GREY, count_format, create_figure, in_style, pick_mark

_HEIGHT_IN = 5.2


class _Series(NamedTuple):
    name: str
    points: Sequence[tuple[float, float]]


@in_style
def plot_fits(prefills: FittedCostModel, steps: FittedStepCost, title: str, link: FittedLink | None = None) -> Figure:
    """Plot panels on logarithmic axes: whole prefills, single steps by what is in them, and the link if measured."""
    figure = create_figure(_HEIGHT_IN)
    left, right, *rest = figure.subplots(1, 2 if link is None else 3)
    if link is not None:
        _draw_link(rest[0], link)
    kinds: dict[str, list[tuple[float, float]]] = {"nothing cached": [], "one cached part": [], "two cached parts": []}
    for batch, error in prefills.residuals:
        cached = (batch.l1 > 0) + (batch.l2 > 0)
        kinds[list(kinds)[cached]].append((batch.seconds, batch.seconds - error))
    _draw(left, "prefills, cost model", prefills.r_squared, [_Series(*kind) for kind in kinds.items()])
    rows: dict[str, list[tuple[float, float]]] = {
        "prefill": [],
        "several rows of prefill": [],
        "decodes": [],
        "mixed": [],
    }
    for residual in steps.residuals:
        measured_s = residual.step.seconds
        rows[_kind(residual.step)].append((measured_s, measured_s - residual.seconds))
    _draw(right, "steps, step cost", steps.r_squared, [_Series(*kind) for kind in rows.items()])
    figure.suptitle(title, fontsize=9.5)
    return figure


def _draw_link(axes: Axes, link: FittedLink) -> None:
    """Draw what was measured as marks, and what is fitted to a single direction as lines."""
    rows = link.rows
    counts = [row.blocks for row in rows]
    series: dict[str, tuple[list[float], LinkSpeed | None]] = {
        "fetch": ([row.fetch_s for row in rows], link.speeds.fetch),
        "store": ([row.store_s for row in rows], link.speeds.store),
        "both ways, each": ([row.both_s for row in rows], None),
        "beside products": ([row.beside_s for row in rows], None),
    }
    for index, (label, (times, speed)) in enumerate(series.items()):
        mark = pick_mark(index)
        rates = [row.gb_s(seconds) for row, seconds in zip(rows, times, strict=True)]
        look: dict[str, Any] = {"marker": mark.marker, "markerfacecolor": "none", "color": mark.colour}
        axes.plot(counts, rates, linestyle="", label=label, **look)
        if speed is not None:
            fitted = [row.gb_s(predict_s(speed, row)) for row in rows]
            axes.plot(counts, fitted, color=mark.colour, linestyle=mark.line_style, linewidth=1)
    axes.set(xscale="log", xlabel="blocks", ylabel="GB/s", title="host's memory: copies, and the fits")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(count_format())
    axes.legend(frameon=False, loc="lower right")


def _kind(step: MeasuredStep) -> str:
    if all(row.query == 1 for row in step.rows):
        return "decodes"
    if any(row.query == 1 for row in step.rows):
        return "mixed"
    return "prefill" if len(step.rows) == 1 else "several rows of prefill"


def _draw(axes: Axes, name: str, r_squared: float, series: Sequence[_Series]) -> None:
    for index, (label, points) in enumerate(series):
        # Nothing can be said of a negative prediction on a logarithmic axis; the table of residuals has it.
        shown = [(1e3 * measured, 1e3 * predicted) for measured, predicted in points if predicted > 0]
        if shown:
            mark = pick_mark(index)
            axes.plot(
                *zip(*shown, strict=True),
                linestyle="",
                marker=mark.marker,
                markerfacecolor="none",
                color=mark.colour,
                label=label,
            )
    axes.set(xscale="log", yscale="log", xlabel="measured (ms)", ylabel="predicted (ms)")
    axes.set_title(f"{name}: R² {r_squared:.5f}")
    low, high = axes.get_xlim()
    axes.plot([low, high], [low, high], color=GREY, linewidth=1, zorder=0)
    axes.set_aspect("equal", adjustable="datalim")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(count_format())
    axes.legend(frameon=False, loc="upper left")
