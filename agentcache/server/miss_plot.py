"""Plots why the prompts of the latest turns were not cached."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import itemgetter
from typing import get_args

from matplotlib.figure import Figure

from agentcache.engine.views import MissReason
from agentcache.report.figure import (
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    add_legend,
    count_format,
    create_figure,
    in_style,
    say_empty,
)
from agentcache.report.html import Plot
from agentcache.server.live_run import NamedJob

_HEIGHT_IN = 3.2
_COLOURS = dict(zip(get_args(MissReason), (GREY, ORANGE, VERMILLION, SKY, PURPLE, GREEN), strict=True))


@in_style
def plot_misses(jobs: Sequence[NamedJob]) -> Figure:
    """Plot the prompt tokens that were not cached, summed over time, one layer a reason."""
    figure = create_figure(_HEIGHT_IN)
    axes = figure.add_subplot(xlabel="time since the first job shown began (s)", ylabel="tokens not cached, summed")
    turns = sorted(
        ((job.offset_s + turn.finished_s, turn.misses) for job in jobs for turn in job.view.turns), key=itemgetter(0)
    )
    times = [time_s for time_s, _ in turns]
    layers = {
        reason: list(accumulate(misses.get(reason, 0) for _, misses in turns))
        for reason in _COLOURS
        if any(reason in misses for _, misses in turns)
    }
    if layers:
        colours = [_COLOURS[reason] for reason in layers]
        areas = axes.stackplot(times, *layers.values(), colors=colours, step="post")
        axes.set_xlim(left=0)
        add_legend(figure, areas, list(layers))
    else:
        say_empty(axes, "no turn missed anything")
    axes.yaxis.set_major_formatter(count_format())
    return figure


def describe_misses(jobs: Sequence[NamedJob]) -> Plot:
    """Describe the plot of these jobs."""
    return Plot(
        "misses",
        "Why prompts were not cached",
        "Prompt tokens of the jobs shown that were computed, by reason: only those never seen before (new) had to be.",
        lambda _: plot_misses(jobs),
    )
