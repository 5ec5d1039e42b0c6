"""Plots swim lanes, cut into waiting, prefill, decode and tools: one a job, its sub-agents' beneath it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as Shape

from agentcache.report.events import RequestEvent
from agentcache.report.figure import (
    BLUE,
    GREY,
    INK,
    MAX_VECTOR_SHAPES,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    add_legend,
    create_figure,
    in_style,
    shorten,
)
from agentcache.report.policy_run import PolicyRun

MAX_LANES = 40
# Of the sub-agents of one job those that began first.
MAX_AGENT_LANES = 7
_LANE_IN = 0.13
_PANEL_FRAME_IN = 0.65
_COLOURS = {"queue": ORANGE, "prefill": BLUE, "waiting for first token": PURPLE, "decode": SKY, "tool": GREY}
_MARKS = {"failed": ("X", VERMILLION), "interrupted": ("D", INK)}


@dataclass(frozen=True, slots=True)
class Segment:
    """A job's activity from `start_s` to `end_s`. `kind` is a key of the colours."""

    kind: str
    start_s: float
    end_s: float


@dataclass(slots=True)
class Lane:
    """One job, or its sub-agent `thread`, always "finished". A job without an end was interrupted with its run."""

    job: str
    thread: str | None = None
    segments: list[Segment] = field(default_factory=list)
    status: Literal["finished", "failed", "interrupted"] = "interrupted"
    start_s: float = float("inf")
    end_s: float = 0.0

    def extend(self, start_s: float, end_s: float) -> None:
        """Stretch the lane to hold this span, in seconds of its run."""
        self.start_s, self.end_s = min(self.start_s, start_s), max(self.end_s, end_s)


def build_lanes(run: PolicyRun) -> list[Lane]:
    """Build the lanes of all jobs of a policy, by start, each before those of its sub-agents."""
    lanes: dict[tuple[str, str | None], Lane] = {}

    def find(job: str, thread: str | None) -> Lane:
        lanes.setdefault((job, None), Lane(job))
        return lanes.setdefault((job, thread), Lane(job, thread, status="finished"))

    for request in run.requests:
        lane = find(request.job, request.thread)
        lane.segments.extend(split_request(request))
        lane.extend(request.sent_s, request.finished_s)
    for call in run.tool_calls:
        lane = find(call.job, call.thread)
        lane.segments.append(Segment("tool", call.started_s, call.finished_s))
        lane.extend(call.started_s, call.finished_s)
    for job in run.jobs:
        lane = find(job.job, None)
        lane.status = job.status
        lane.extend(job.started_s, job.finished_s)
    starts_s = {job: lane.start_s for (job, thread), lane in lanes.items() if thread is None}
    return sorted(
        lanes.values(), key=lambda lane: (starts_s[lane.job], lane.job, lane.thread is not None, lane.start_s)
    )


def split_request(request: RequestEvent) -> Iterator[Segment]:
    """Split into queue, prefill and decode. What the client sees before the first token and is not queue is prefill."""
    first_token_s = request.finished_s if request.first_token_s is None else request.first_token_s
    if request.first_token_s is None or request.queue_s is None or request.prefill_s is None:
        yield Segment("waiting for first token", request.sent_s, first_token_s)
    else:
        scheduled_s = min(request.sent_s + request.queue_s, first_token_s)
        yield Segment("queue", request.sent_s, scheduled_s)
        yield Segment("prefill", scheduled_s, first_token_s)
    if request.first_token_s is not None:
        yield Segment("decode", first_token_s, request.finished_s)


def choose_lanes(lanes: Sequence[Lane]) -> list[Lane]:
    """Choose as many jobs as MAX_LANES hold with their first sub-agents: all, or some at even distances."""
    jobs = [list(own)[: 1 + MAX_AGENT_LANES] for _, own in groupby(lanes, key=lambda lane: lane.job)]
    for count in range(min(len(jobs), MAX_LANES), 0, -1):
        chosen = [jobs[round(place)] for place in np.linspace(0, len(jobs) - 1, count)]
        if sum(map(len, chosen)) <= MAX_LANES:
            return list(chain.from_iterable(chosen))
    return []


@in_style
def plot_swim_lanes(policies: Mapping[str, PolicyRun]) -> Figure:
    """Plot a panel for each policy, in two columns from three policies on. All panels share one time axis."""
    panels = {policy: build_lanes(run) for policy, run in policies.items()}
    columns = 1 if len(panels) < 3 else 2
    rows = max(1, -(-len(panels) // columns))
    tallest = max((len(choose_lanes(lanes)) for lanes in panels.values()), default=0)
    figure = create_figure(rows * (max(6, tallest) * _LANE_IN + _PANEL_FRAME_IN))
    grid = figure.subplots(rows, columns, sharex=True, squeeze=False)
    for place, (axes, (policy, lanes)) in enumerate(zip(grid.flat, panels.items(), strict=False)):
        axes.set_title(_title(policy, lanes, 110 // columns))
        _draw_panel(axes, choose_lanes(lanes))
        if place + columns >= len(panels):
            axes.set_xlabel("time since the policy's run began (s)")
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    everything = [lane for lanes in panels.values() for lane in choose_lanes(lanes)]
    grid.flat[0].set_xlim(0, max((lane.end_s for lane in everything), default=0.0) or 1.0)
    add_legend(figure, *_build_legend(everything))
    return figure


def _title(policy: str, lanes: Sequence[Lane], length: int) -> str:
    shown, jobs = (len({lane.job for lane in each}) for each in (choose_lanes(lanes), lanes))
    some = f": {shown} of {jobs:,} jobs, evenly chosen" if shown < jobs else ""
    return shorten(policy, length - len(some)) + some


def _draw_panel(axes: Axes, lanes: Sequence[Lane]) -> None:
    shapes: defaultdict[str, list[tuple[tuple[float, float], ...]]] = defaultdict(list)
    for y, lane in enumerate(lanes):
        for segment in lane.segments:
            shapes[segment.kind].append(_box(segment, y, 0.38 if lane.thread is None else 0.22))
    many = sum(map(len, shapes.values())) > MAX_VECTOR_SHAPES
    for kind, boxes in shapes.items():
        # One path for all boxes of a kind: thousands of single patches make a page of megabytes.
        shape = Shape.make_compound_path_from_polys(np.array(boxes))
        axes.add_patch(PathPatch(shape, facecolor=_COLOURS[kind], linewidth=0, rasterized=many))
    for status, (marker, colour) in _MARKS.items():
        ends = [(lane.end_s, y) for y, lane in enumerate(lanes) if lane.status == status]
        if ends:
            axes.plot(*zip(*ends, strict=True), linestyle="", marker=marker, color=colour, markersize=5, clip_on=False)
    axes.set_ylim(max(len(lanes), 1) - 0.4, -0.6)
    names = [shorten(lane.job, 22) if lane.thread is None else f"– {shorten(lane.thread, 20)}" for lane in lanes]
    axes.set_yticks(range(len(lanes)), names, fontsize=6.5)
    axes.tick_params(axis="x", labelbottom=True)
    axes.set_ylabel("jobs by start")
    axes.grid(visible=False, axis="y")


def _box(segment: Segment, y: int, half: float) -> tuple[tuple[float, float], ...]:
    left, right, top, bottom = segment.start_s, segment.end_s, y - half, y + half
    return (left, top), (right, top), (right, bottom), (left, bottom)


def _build_legend(lanes: Sequence[Lane]) -> tuple[list[Artist], list[str]]:
    kinds = {segment.kind for lane in lanes for segment in lane.segments}
    statuses = {lane.status for lane in lanes}
    handles: dict[str, Artist] = {kind: Patch(color=colour) for kind, colour in _COLOURS.items() if kind in kinds}
    for status, (marker, colour) in _MARKS.items():
        if status in statuses:
            handles[f"job {status}"] = Line2D([], [], linestyle="", marker=marker, color=colour)
    return list(handles.values()), list(handles)
