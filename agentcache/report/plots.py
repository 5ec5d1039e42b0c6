"""Plots all policies: job latency, hit rate over time, TTFT against context length, the front of a closed loop.

Swim lanes: swim_lanes.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import NDArray

from agentcache.report.figure import (
    MAX_VECTOR_SHAPES,
    Mark,
    add_legend,
    count_format,
    create_figure,
    in_style,
    pick_mark,
    say_empty,
)
from agentcache.report.lane_points import LanePoint, find_front, list_lines
from agentcache.report.policy_run import PolicyRun

_HEIGHT_IN = 4.0
# A wider range of TTFT than this is drawn on a logarithmic axis.
_LOG_RANGE = 20.0
_BINS = 8

FloatArray = NDArray[np.float64]


@in_style
def plot_latency_cdf(policies: Mapping[str, PolicyRun]) -> Figure:
    """Plot the cumulative share of finished jobs over their latency, one line a policy."""
    figure = create_figure(_HEIGHT_IN)
    axes = figure.add_subplot(xlabel="job latency (s)", ylabel="finished jobs (%)")
    lines: dict[str, Line2D] = {}
    for index, (policy, run) in enumerate(policies.items()):
        latencies = sorted(job.finished_s - job.started_s for job in run.finished_jobs)
        if latencies:
            shares = np.linspace(0, 100, len(latencies) + 1)
            lines[policy] = _draw_steps(axes, np.array([latencies[0], *latencies]), shares, index)
    if lines:
        axes.set_xlim(left=0)
        axes.set_ylim(0, 102)
    else:
        say_empty(axes, "no job finished")
    add_legend(figure, list(lines.values()), list(lines))
    return figure


@in_style
def plot_hit_rate(policies: Mapping[str, PolicyRun]) -> Figure:
    """Plot the token hit rate of all requests answered so far, over time, one line a policy."""
    figure = create_figure(_HEIGHT_IN)
    axes = figure.add_subplot(xlabel="time since the policy's run began (s)", ylabel="cumulative token hit rate (%)")
    lines: dict[str, Line2D] = {}
    for index, (policy, run) in enumerate(policies.items()):
        known = (request for request in run.answered if request.prompt_tokens and request.cached_tokens is not None)
        told = sorted((request.finished_s, request.cached_tokens, request.prompt_tokens) for request in known)
        if told:
            times, cached, prompt = np.array(told, dtype=float).T
            lines[policy] = _draw_steps(axes, times, 100 * np.cumsum(cached) / np.cumsum(prompt), index)
    if lines:
        axes.set_xlim(left=0)
        axes.set_ylim(0, 102)
    else:
        say_empty(axes, "no server told what it cached")
    add_legend(figure, list(lines.values()), list(lines))
    return figure


def _draw_steps(axes: Axes, x: FloatArray, y: FloatArray, index: int) -> Line2D:
    mark = pick_mark(index)
    # Markers stand at distances along the line; each policy begins elsewhere so that equal lines show both.
    (line,) = axes.plot(
        x,
        y,
        color=mark.colour,
        linestyle=mark.line_style,
        marker=mark.marker,
        markevery=(0.02 + 0.013 * (index % 8), 0.12),
        drawstyle="steps-post",
    )
    return line


@in_style
def plot_ttft(policies: Mapping[str, PolicyRun]) -> Figure:
    """Plot the TTFT of every answered request over the length of its prompt, and the median by length, by policy."""
    figure = create_figure(_HEIGHT_IN)
    axes = figure.add_subplot(xlabel="context length (prompt tokens)", ylabel="TTFT (s)")
    samples = {policy: [(r.prompt_tokens, r.ttft_s) for r in run.answered] for policy, run in policies.items()}
    many = sum(map(len, samples.values())) > MAX_VECTOR_SHAPES
    lines: dict[str, Line2D] = {}
    for index, (policy, sample) in enumerate(samples.items()):
        points = np.array([point for point in sample if point[1] is not None], dtype=float)
        if len(points):
            lines[policy] = _draw_ttft(axes, points, pick_mark(index), rasterized=many)
    axes.xaxis.set_major_formatter(count_format())
    if lines:
        _scale_ttft(axes, [ttft for sample in samples.values() for _, ttft in sample if ttft is not None])
    else:
        say_empty(axes, "no request was answered")
    add_legend(figure, list(lines.values()), list(lines))
    return figure


def _draw_ttft(axes: Axes, points: FloatArray, mark: Mark, *, rasterized: bool) -> Line2D:
    axes.scatter(
        points[:, 0],
        points[:, 1],
        s=12,
        marker=mark.marker,
        facecolors="none",
        edgecolors=mark.colour,
        linewidths=0.8,
        # Thousands of marks would hide the medians.
        alpha=0.15 if rasterized else 0.6,
        rasterized=rasterized,
    )
    (line,) = axes.plot(
        *_bin_medians(points), color=mark.colour, linestyle=mark.line_style, marker=mark.marker, markersize=6
    )
    return line


def _bin_medians(points: FloatArray) -> tuple[list[float], list[float]]:
    """Find median length and TTFT of consecutive parts of equal size, from the shortest prompt to the longest."""
    parts = np.array_split(points[np.argsort(points[:, 0], kind="stable")], max(1, min(_BINS, len(points) // 5)))
    return [float(np.median(part[:, 0])) for part in parts], [float(np.median(part[:, 1])) for part in parts]


def _scale_ttft(axes: Axes, ttfts: list[float]) -> None:
    axes.set_xlim(left=0)
    if min(ttfts) > 0 and max(ttfts) / min(ttfts) > _LOG_RANGE:
        axes.set_yscale("log")
        axes.set_ylabel("TTFT (s, log scale)")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(count_format())
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)


_FRONT_HEIGHT_IN = 5.0
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
    figure = create_figure(_FRONT_HEIGHT_IN)
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
