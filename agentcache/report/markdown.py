"""Writes `report.md`: what was run, the table of policies, notes and failures, without plots."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from agentcache.report import content
from agentcache.report.content import Listing, Report
from agentcache.report.events import RunRecord
from agentcache.report.job_rows import list_slowest_jobs
from agentcache.report.lane_points import LanePoint, build_point_rows, point_headers
from agentcache.report.table import Row, build_rows, caption

# Signs that Markdown or HTML would act on.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>&|~$#])")


def render_markdown(report: Report) -> str:
    """Render the whole of `report.md`."""
    return "\n".join(_lines(report)).rstrip("\n") + "\n"


def escape(text: str) -> str:
    """Escape text into one line that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _lines(report: Report) -> Iterator[str]:
    yield from (f"# {escape(content.title(report))}", "")
    headline = content.headline(report)
    if headline is not None:
        yield from (f"**{escape(headline)}**", "")
    yield from (escape(" ".join(content.describe_runs(report))), "")
    yield from _bullets(content.warnings(report))
    yield from ("## Results", "")
    if report.points:
        yield from _points_table(report.points)
    elif report.policies:
        names = list(report.policies)
        yield from _policy_table(names, build_rows(report.summary.policies))
        yield from (escape(" ".join(caption(names))), "")
    yield from _listing("The slowest jobs", list_slowest_jobs(report))
    yield from ("## What was run", "")
    for name, record in report.runs.items():
        yield from _run(record, name if len(report.runs) > 1 else "")
    yield from _listing("Engines", content.list_engines(report))
    notes = content.list_notes(report)
    if notes:
        yield from ("## Notes", "")
        yield from _bullets(notes)
    yield from _listing("Failed and interrupted jobs", content.list_failures(report))
    yield from _listing("Diverged prompts", content.list_divergences(report))
    yield from ("## Files", "")
    yield from _bullets(content.describe_files(report))


def _policy_table(names: Sequence[str], rows: Sequence[Row]) -> Iterator[str]:
    headers = ["Metric", names[0]]
    for name in names[1:]:
        headers += [name, "×"]
    yield _row(map(escape, headers))
    yield "| --- |" + " ---: |" * (len(headers) - 1)
    for row in rows:
        values = []
        for index, cell in enumerate(row.cells):
            values.append(f"**{cell.text}**" if cell.best else cell.text)
            values += [cell.ratio] if index else []
        yield _row([row.metric.header, *values])
    yield ""


def _points_table(points: Sequence[LanePoint]) -> Iterator[str]:
    headers = point_headers()
    yield _row(map(escape, headers))
    yield "| ---: | --- |" + " ---: |" * (len(headers) - 3) + " --- |"
    yield from (_row(map(escape, row.cells)) for row in build_point_rows(points))
    yield from ("", content.FRONT_LEGEND, "")


def _run(record: RunRecord, name: str) -> Iterator[str]:
    if name:
        yield from (f"### {escape(name)}", "")
    # An indented block shows a command as it is, whatever backticks it holds.
    yield from (f"    {' '.join(record.command.split())}", "")
    yield from (f"- {fact}: {escape(value)}" for fact, value in content.list_facts(record))
    yield ""


def _listing(heading: str, listing: Listing) -> Iterator[str]:
    if not listing.rows:
        return
    yield from (f"## {heading}", "", _row(listing.columns), "|" + " --- |" * len(listing.columns))
    yield from (_row(map(escape, row)) for row in listing.rows)
    yield ""
    if listing.left_out:
        yield from (f"{listing.left_out:,} more are in `events.jsonl`.", "")


def _bullets(texts: Iterable[str]) -> Iterator[str]:
    lines = [f"- {escape(text)}" for text in texts]
    if lines:
        yield from (*lines, "")


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
