"""Serves `GET /agentcache/report`: tables and plots of the engines' latest jobs, as one HTML page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool

from agentcache.engine.rpc.snapshot import EngineSnapshot
from agentcache.errors import ServerError
from agentcache.report.figure import render_svg
from agentcache.report.html import PLOTS, Plot, find_template
from agentcache.report.policy_run import PolicyRun
from agentcache.report.summary import PolicySummary, summarize_policy
from agentcache.report.swim_lanes import MAX_LANES, plot_swim_lanes
from agentcache.report.table import NO_DATA, Row, build_rows
from agentcache.report.verdict import judge_server
from agentcache.server.job_reader import EngineJob, JobReader
from agentcache.server.live_content import build_tiles, list_changes, list_ended_jobs, list_open_jobs, list_tools
from agentcache.server.live_run import NamedJob, build_lanes_run, build_run, name_jobs
from agentcache.server.miss_plot import describe_misses
from agentcache.server.snapshot_reader import Reading

MIN_INTERVAL_S = 2.0
# Drawing competes with the server for one interpreter, so it then pauses for this many times as long as it took.
REST = 9.0
_TEMPLATE = "live_report.html.jinja"
_TIME_AXIS = "time since the first job shown began (s)"
_LEGEND = (
    "Job latency is first arrival to last reply, of jobs that are over or whose last reply called no tool; "
    "everything else is of all jobs. TTFT is timed in the engine."
)

Values = dict[str, Any]


class LiveReport:
    """Draws at most once an interval, however often the page is requested. For one event loop."""

    def __init__(
        self,
        jobs: JobReader,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._jobs = jobs
        self._clock = clock
        self._wall_clock = wall_clock
        self._template = find_template(_TEMPLATE, Path(__file__).parent)
        # Prevents two drawings at once, too: matplotlib's settings are global.
        self._lock = asyncio.Lock()
        self._next_try_s = clock()
        self._values: Values | None = None
        self._warning = ""

    async def render(self, reading: Reading, refresh_s: int) -> str:
        """Return the page for `reading`, or one drawn a moment ago; if engines do not answer, the last, which says so.

        Raises ServerError when there is none.
        """
        async with self._lock:
            if self._clock() >= self._next_try_s:
                await self._update(reading)
        if self._values is None:
            raise ServerError(self._warning)
        return self._template.render(refresh_s=refresh_s, warning=self._warning, **self._values)

    async def _update(self, reading: Reading) -> None:
        began_s = self._clock()
        try:
            found = await self._jobs.list_whole(reading)
            drawing_s = self._clock()
            self._values = await run_in_threadpool(build_values, reading.engines, found, self._wall_clock())
        except ServerError as error:
            self._warning = str(error)
            self._next_try_s = self._clock() + MIN_INTERVAL_S
        else:
            self._warning = ""
            ended_s = self._clock()
            self._next_try_s = max(began_s + MIN_INTERVAL_S, ended_s + REST * (ended_s - drawing_s))


def build_values(engines: Sequence[EngineSnapshot], found: Sequence[Values], time_s: float) -> Values:
    """Collect what the template shows. `found` are EngineJobs as plain values, `time_s` is seconds since 1970."""
    jobs = name_jobs([EngineJob.model_validate(job) for job in found])
    policy = engines[0].policy
    run = build_run(policy, jobs, engines[0].blocks.tokens_per_block)
    return {
        "policy": policy,
        "engines": len(engines),
        "time": datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "verdict": _judge(engines, jobs),
        "tiles": build_tiles(engines),
        "jobs": len(jobs),
        "open_jobs": list_open_jobs(jobs),
        "ended_jobs": list_ended_jobs(jobs),
        "changes": list_changes(jobs),
        "tools": list_tools(engines),
        "rows": _choose_rows({policy: summarize_policy(run)}),
        "legend": [_LEGEND],
        "plots": list(_draw(policy, run, jobs)) if run.requests else [],
    }


def _judge(engines: Sequence[EngineSnapshot], jobs: Sequence[NamedJob]) -> str | None:
    contexts = sum(job.view.turns[-1].prompt_tokens for job in jobs if job.view.turns and not job.view.is_over)
    return judge_server([engine.model_dump(mode="json") for engine in engines], contexts)


def _choose_rows(policies: dict[str, PolicySummary]) -> list[Row]:
    """Keep the rows that have a value and a meaning: the jobs shown are a window, which has no makespan."""
    rows = [row for row in build_rows(policies) if row.metric.name != "Makespan"]
    return [row for row in rows if any(cell.text != NO_DATA for cell in row.cells)]


def _draw(policy: str, run: PolicyRun, jobs: Sequence[NamedJob]) -> Iterator[tuple[Plot, str]]:
    for plot in (*PLOTS, describe_misses(jobs)):
        shown, its_run = plot, run
        if plot.draw is plot_swim_lanes:
            shown = replace(plot, caption=f"The jobs active last, up to {MAX_LANES}. {plot.caption}")
            its_run = build_lanes_run(policy, jobs, MAX_LANES)
        figure = plot.draw({policy: its_run})
        for axes in figure.axes:
            if axes.get_xlabel().startswith("time since"):
                axes.set_xlabel(_TIME_AXIS)
        yield shown, render_svg(figure, plot.name)
