"""The plot of closed loops under rising load: throughput per GPU over what each user gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from agentcache.report.figure import Mark, add_legend, count_format, create_figure, in_style, pick_mark, say_empty
from agentcache.report.lane_points import LanePoint, find_front, list_lines

_HEIGHT_IN = 5.0
# For the numbers beside the outermost points.
_ROOM = 1.06
# In typographic points: where a number may begin beside its point, the best place first, its centre from there, and how
# far that is from other points and numbers where they do not touch.
_BESIDE = ((7, 5), (7, -13), (-19, 5), (-19, -13), (-6, 10), (-6, -18), (18, -4))
_CENTRE = (6, 4)
_CLEAR = 14.0


@in_style
def plot_front(points: Sequence[LanePoint]) -> Figure:
    """Plot throughput over interactivity, a line a policy, a point a number of lanes; the front's are filled."""
    figure = create_figure(_HEIGHT_IN)
    axes = figure.add_subplot(
        xlabel="interactivity, first token included, P50 (tokens per second and user)",
        ylabel="throughput (tokens per second and GPU)",
    )
    front = find_front(points)
    lines: dict[str, Line2D] = {}
    by_line = list_lines(points)
    for index, (name, own) in enumerate(by_line.items()):
        measured = [point for point in own if point.place]
        if measured:
            lines[name] = _draw_line(axes, measured, front, pick_mark(index))
    axes.yaxis.set_major_formatter(count_format())
    if lines:
        places = [point.place for point in points if point.place]
        axes.set_xlim(0, _ROOM * max(user for user, _ in places))
        axes.set_ylim(0, _ROOM * max(gpu for _, gpu in places))
        in_lines = [point for own in by_line.values() for point in own]
        _number_points(axes, in_lines, front, {name: line.get_color() for name, line in lines.items()})
    else:
        say_empty(axes, "nothing was measured")
    add_legend(figure, list(lines.values()), list(lines))
    return figure


def _draw_line(axes: Axes, points: Sequence[LanePoint], front: Sequence[LanePoint], mark: Mark) -> Line2D:
    """Draw a line with its points; return what stands for it in the legend."""
    look: dict[str, Any] = {"color": mark.colour, "marker": mark.marker, "markersize": 8.0}
    places = [point.place for point in points if point.place]
    axes.plot(*zip(*places, strict=True), color=mark.colour, linestyle=mark.line_style)
    for point, place in zip(points, places, strict=True):
        axes.plot(*place, **look, linestyle="", fillstyle="full" if point in front else "none")
    return Line2D([], [], **{**look, "linestyle": mark.line_style})


def _number_points(
    axes: Axes, points: Sequence[LanePoint], front: Sequence[LanePoint], colours: Mapping[str, Any]
) -> None:
    """Write the number of lanes beside each point, where it covers least of what stands there already."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    in_points = 72.0 / figure.dpi
    placed = [(point, point.place) for point in points if point.place]
    marks = [axes.transData.transform(place) * in_points for _, place in placed]
    edge = axes.bbox.x0 * in_points
    numbers: list[Any] = []
    for (point, place), mark in zip(placed, marks, strict=True):
        others = [other for other in marks if other is not mark] + numbers
        centres = {shift: mark + shift + _CENTRE for shift in _BESIDE if mark[0] + shift[0] > edge}
        shift = max(centres, key=lambda shift: min([_CLEAR, *(hypot(*(centres[shift] - other)) for other in others)]))
        numbers.append(centres[shift])
        axes.annotate(
            str(point.lanes),
            place,
            textcoords="offset points",
            xytext=shift,
            color=colours[point.line],
            weight="bold" if point in front else "normal",
        )
