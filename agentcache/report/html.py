"""Writes `report.html`: one page that needs nothing else, with the table of policies, the plots and what was run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from matplotlib.figure import Figure

from agentcache.report import content
from agentcache.report.content import Report
from agentcache.report.figure import render_svg
from agentcache.report.job_rows import list_slowest_jobs
from agentcache.report.lane_points import LanePoint, build_point_rows, point_headers
from agentcache.report.plots import plot_front, plot_hit_rate, plot_latency_cdf, plot_ttft
from agentcache.report.policy_run import PolicyRun
from agentcache.report.swim_lanes import plot_swim_lanes
from agentcache.report.table import build_rows, caption

_TEMPLATE = "report.html.jinja"


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of the page and how to read it. `name` is unique among them: it goes before every id of its SVG."""

    name: str
    title: str
    caption: str
    draw: Callable[[Mapping[str, PolicyRun]], Figure]


PLOTS = (
    Plot(
        "latency",
        "Job latency",
        "The share of finished jobs (up) that took no longer than a time (right): further left is better.",
        plot_latency_cdf,
    ),
    Plot(
        "lanes",
        "What each job did",
        "One lane a job, first request to last reply, with its first sub-agents, up to seven, beneath it: the less "
        "queue and prefill, the more came from the cache.",
        plot_swim_lanes,
    ),
    Plot(
        "hits",
        "Token hit rate",
        "The share of all prompt tokens up to a time that came from the cache: higher is better.",
        plot_hit_rate,
    ),
    Plot(
        "ttft",
        "TTFT by context length",
        "Small marks are requests, lines their median by length: flatter means that more of a long prompt was cached.",
        plot_ttft,
    ),
)


def find_template(name: str, *folders: Path) -> Template:
    """Find a template of this folder or of `folders`; it can use `parts.html.jinja` and `style.css`, which lie here."""
    return Environment(
        loader=FileSystemLoader([Path(__file__).parent, *folders]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    ).get_template(name)


def render_html(report: Report) -> str:
    """Render the whole of `report.html`."""
    names = list(report.policies)
    return find_template(_TEMPLATE).render(
        title=content.title(report),
        headline=content.headline(report),
        sentences=list(content.describe_runs(report)),
        warnings=list(content.warnings(report)),
        policies=names,
        rows=build_rows(report.summary.policies),
        legend=list(caption(names)),
        point_headers=point_headers(),
        point_rows=list(build_point_rows(report.points)),
        point_legend=content.FRONT_LEGEND,
        plots=_draw(report),
        runs=[(name, record, content.list_facts(record)) for name, record in report.runs.items()],
        engines=content.list_engines(report),
        notes=content.list_notes(report),
        jobs=list_slowest_jobs(report),
        problems=[
            ("Failed and interrupted jobs", content.list_failures(report)),
            ("Diverged prompts", content.list_divergences(report)),
        ],
        files=list(content.describe_files(report)),
    )


def _draw(report: Report) -> list[tuple[Plot, str]]:
    """Draw the page's plots; of closed loops under rising load the one that has them all."""
    plots = (_describe_front(report.points),) if report.points else PLOTS if report.policies else ()
    return [(plot, render_svg(plot.draw(report.policies), plot.name)) for plot in plots]


def _describe_front(points: Sequence[LanePoint]) -> Plot:
    return Plot(
        "front",
        "Throughput against interactivity",
        "A line a policy, a point a number of lanes, which stands beside it: further up serves more, further right "
        "each user faster. Filled points are on the front: no other has as much of both and more of one.",
        lambda _: plot_front(points),
    )
