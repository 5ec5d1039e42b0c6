"""Figures of a plan: mean job latency and hits over the size of the cache, and over the number of engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from agentcache.plan.settings import Cell, Outcome
from agentcache.report.figure import (
    GREY,
    add_legend,
    count_format,
    create_figure,
    in_style,
    pick_mark,
    render_svg,
    say_empty,
)

_HEIGHT_IN = 4.0
_BOUND_STYLES = ("--", ":")


@dataclass(frozen=True, slots=True)
class _Measure:
    """What is plotted; `bounds`, by their names, are what it is held against, whatever the policy."""

    name: str
    heading: str
    label: str
    hint: str
    of: Callable[[Outcome], float | None]
    bounds: Mapping[str, Callable[[Outcome], float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Axis:
    """What it is plotted over; `scope` says what is the same in all of a plot."""

    name: str
    label: str
    scope: str
    of: Callable[[Cell], int]


_MEASURES = (
    _Measure("mean", "Mean job latency", "mean job latency (s)", "lower is better", lambda outcome: outcome.mean_s),
    _Measure(
        "hits",
        "Hits",
        "hits (% of prompt tokens)",
        "higher is better",
        lambda outcome: 100 * outcome.hit_rate,
        {
            "clairvoyant": lambda outcome: 100 * outcome.clairvoyant_hits,
            "endless cache": lambda outcome: 100 * outcome.endless_hits,
        },
    ),
)


def plot_outcomes(outcomes: Sequence[Outcome]) -> list[tuple[str, str, str]]:
    """Plot what has no CPU cache: headings, captions and pictures as SVG."""
    return [
        (
            measure.heading if axis.name == "cache" else f"{measure.heading} by engines",
            f"{axis.scope}: {measure.hint}.",
            render_svg(_plot(shown, measure, axis), f"{measure.name}-{axis.name}"),
        )
        for axis, shown in _find_axes([each for each in outcomes if not each.cell.cpu_tokens])
        for measure in _MEASURES
    ]


def _find_axes(outcomes: Sequence[Outcome]) -> Iterator[tuple[_Axis, Sequence[Outcome]]]:
    """Find what to plot over, each with the outcomes that differ in it and in the policy alone."""
    engines = outcomes[0].cell.engines if outcomes else 1
    beside = "" if engines == 1 else f", of each of {engines} engines"
    yield (
        _Axis(
            "cache",
            "KV cache (tokens)",
            f"Without a CPU cache, by the size of the cache{beside}",
            lambda at: at.kv_tokens,
        ),
        [each for each in outcomes if each.cell.engines == engines],
    )
    if any(each.cell.engines != engines for each in outcomes):
        tokens = outcomes[0].cell.kv_tokens
        yield (
            _Axis(
                "engines",
                "engines",
                f"Without a CPU cache, each with a cache of {tokens:,} tokens",
                lambda at: at.engines,
            ),
            [each for each in outcomes if each.cell.kv_tokens == tokens],
        )


@in_style
def _plot(outcomes: Sequence[Outcome], measure: _Measure, axis: _Axis) -> Figure:
    """Plot a line a policy."""
    figure = create_figure(_HEIGHT_IN)
    axes = figure.add_subplot(xlabel=axis.label, ylabel=measure.label)
    lines: dict[str, Line2D] = {}
    shown = [each for each in outcomes if each.mean_s is not None]
    for index, policy in enumerate(dict.fromkeys(each.cell.policy for each in shown)):
        own = sorted((each for each in shown if each.cell.policy == policy), key=lambda each: axis.of(each.cell))
        mark = pick_mark(index)
        (lines[policy],) = axes.plot(
            [axis.of(each.cell) for each in own],
            [measure.of(each) for each in own],  # type: ignore[arg-type]
            color=mark.colour,
            linestyle=mark.line_style,
            marker=mark.marker,
        )
    if not shown:
        say_empty(axes, "no job finished")
    for (name, bound), style in zip(measure.bounds.items(), _BOUND_STYLES, strict=False):
        points = {axis.of(each.cell): bound(each) for each in shown}
        places = sorted(points)
        (lines[name],) = axes.plot(places, [points[at] for at in places], color=GREY, linestyle=style, marker=".")
    axes.margins(y=0.15)
    axes.set_ylim(bottom=0)
    # There is no half an engine.
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_major_formatter(count_format())
    add_legend(figure, list(lines.values()), list(lines))
    return figure
