"""Writes what a report says, in words and rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentcache.report.events import EVENTS_FILE, MEASURED, RUN_FILE, RunRecord
from agentcache.report.lane_points import OF_LANES, LanePoint, describe_front, join_numbers, list_lines
from agentcache.report.policy_run import PolicyRun
from agentcache.report.summary import PolicySummary, Summary
from agentcache.report.table import NO_DATA, format_number

SUMMARY_FILE = "summary.json"
HTML_FILE = "report.html"
# A report is read by people: more failures than this, or longer texts, are in events.jsonl.
MAX_LISTED = 20
MAX_CAUSE = 300
# Below the table of closed loops under rising load.
FRONT_LEGEND = (
    "With TTFT: a whole request's rate, its wait for the first token included. Infinite cache: what a cache without "
    "evictions would hit. Front: no other row has as much of both that rate, at its median, and throughput, and more "
    "of one."
)
_COMPARED = ("workload", "model", "device", "seed", "jobs", "cache_tokens")


@dataclass(frozen=True, slots=True)
class Report:
    """One or several runs with all their policies. The keys of `policies` and of `summary.policies` are the same.

    `losses` has, by run, what its events should hold and do not. `points` are those of closed loops under rising load,
    which then stand in place of the table of policies.
    """

    runs: Mapping[str, RunRecord]
    policies: Mapping[str, PolicyRun]
    summary: Summary
    losses: Mapping[str, Sequence[str]]
    points: Sequence[LanePoint] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows under column names; `left_out` more rows are not shown. `links` are the addresses of first cells, if any."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    left_out: int = 0
    links: Sequence[str] = ()


def title(report: Report) -> str:
    """Name the report after the workloads of its runs."""
    workloads = dict.fromkeys(record.workload for record in report.runs.values())
    return f"agentcache report: {', '.join(workloads)}"


def headline(report: Report) -> str | None:
    """Say in one sentence what the report shows; None where there is nothing to compare, or not the same jobs."""
    return describe_front(report.points) if report.points else report.summary.verdict


def describe_runs(report: Report) -> Iterator[str]:
    """Describe each run in one sentence, closed loops that differ in their lanes alone in the same one."""
    if report.points:
        yield from _describe_loops(report)
        return
    for name, record in report.runs.items():
        prefix = f"{name}: " if len(report.runs) > 1 else ""
        yield f"{prefix}{_describe_load(record)} {_describe_place(record)}"
    yield (
        f"{_count(len(report.policies), 'policy', 'policies')}: {', '.join(report.policies)}."
        if report.policies
        else "No events were recorded, so there is nothing to compare."
    )


def _describe_loops(report: Report) -> Iterator[str]:
    lanes: dict[str, list[int]] = {}
    for record in report.runs.values():
        lanes.setdefault(_describe_place(record), []).append(record.lanes or 0)
    for place, numbers in lanes.items():
        yield f"Closed loops of {join_numbers(sorted(set(numbers)))} lanes {place}"
    lines = list_lines(report.points)
    yield f"{_count(len(lines), 'policy', 'policies')}: {', '.join(lines)}."


def _describe_place(record: RunRecord) -> str:
    cache = f"{record.cache_tokens:,} tokens" if record.cache_tokens is not None else "the size that the engine chose"
    host_tokens = record.settings.get("cpu_tokens")
    host = f", and {host_tokens:,} in the CPU cache" if host_tokens else ""
    return f"of {record.workload} on {record.model}, {record.device}, with a KV cache of {cache}{host}."


def _describe_load(record: RunRecord) -> str:
    return _count(record.jobs, "job") if record.lanes is None else f"A closed loop of {_count(record.lanes, 'lane')}"


def warnings(report: Report) -> Iterator[str]:
    """List what a reader must know before trusting the table: how the runs differ, and one line for each policy."""
    yield from differences(report)
    for policy, run in report.policies.items():
        doubts = list(_doubts(run, report.summary.policies[policy]))
        if doubts:
            yield f"{policy}: {'; '.join(doubts)}."


def _doubts(run: PolicyRun, figures: PolicySummary) -> Iterator[str]:
    if run.end is None:
        yield f"the run broke before this policy ended, with {_count(len(run.open_jobs), 'job')} begun and not ended"
    if run.end is not None and run.end.broken_off and figures.throughput:
        yield f"interrupted: measured for {format_number(figures.throughput.window_s)} s alone"
    # The end of a closed loop finds its lanes at work.
    interrupted = 0 if figures.throughput else figures.interrupted
    lost = {"failed": figures.failed, "interrupted": interrupted}
    losses = [f"{number:,} {status}" for status, number in lost.items() if number]
    if losses:
        yield f"of {_count(figures.jobs, 'job')} {' and '.join(losses)}"
    if figures.throughput:
        return
    if figures.finished == 0:
        yield "no job finished, so there is no job latency"
    elif losses or run.open_jobs:
        yield f"job latency is over the {figures.finished:,} finished only"
    if figures.diverged_prompts:
        yield f"{_count(figures.diverged_prompts, 'prompt')} diverged from the conversation so far"
    if figures.retries:
        yield f"{_count(figures.retries, 'retry', 'retries')} after connection errors"


def differences(report: Report) -> Iterator[str]:
    """Say how the runs differ, but for what closed loops under rising load are to differ in."""
    records = list(report.runs.values())
    meant = ("jobs", *OF_LANES) if report.points else ()
    for name in _COMPARED:
        if name in meant:
            continue
        values = list(dict.fromkeys(getattr(record, name) for record in records))
        if len(values) > 1:
            yield f"The runs differ in {name.replace('_', ' ')}: {', '.join(_show(value) for value in values)}."
    names = dict.fromkeys(name for record in records for name in record.settings if name not in meant)
    differing = [name for name in names if len({repr(record.settings.get(name)) for record in records}) > 1]
    if differing:
        yield f"The runs differ in these settings: {', '.join(differing)}."


def list_facts(record: RunRecord) -> list[tuple[str, str]]:
    """List what was run, as names and values; the command stands apart."""
    return [
        ("Started", record.started_at),
        ("Device", record.device),
        ("Model", record.model),
        ("Workload", record.workload),
        ("Jobs", _show(record.jobs)),
        ("Seed", str(record.seed)),
        ("KV cache (tokens)", _show(record.cache_tokens)),
        ("Settings", _show_all(record.settings)),
        ("Versions", _show_all(record.versions)),
    ]


def list_engines(report: Report) -> Listing:
    """List what each policy's engine said of itself."""
    rows = []
    for policy, run in report.policies.items():
        end = run.end
        startup = end.engine_startup_s if end else None
        rows.append(
            (
                policy,
                _show(end.model_runner if end else None),
                _show(end.block_size if end else None),
                _show(end.cache_tokens if end else None),
                NO_DATA if startup is None else format_number(startup),
            )
        )
    return Listing(("Policy", "Model runner", "Block size (tokens)", "KV cache (tokens)", "Engine start-up (s)"), rows)


def list_failures(report: Report) -> Listing:
    """List the jobs that failed or were interrupted, with the cause."""
    rows = [
        (policy, job.job, job.status, _clip(job.error or "no cause recorded"))
        for policy, run in report.policies.items()
        for job in run.jobs
        if job.status != "finished" and job.error != MEASURED
    ]
    return _cap(("Policy", "Job", "Status", "Cause"), rows)


def list_divergences(report: Report) -> Listing:
    """List the prompts that do not extend the last prompt plus output, with the first token that differs."""
    rows = [
        (policy, request.job, str(request.turn), f"{request.diverged_at:,}")
        for policy, run in report.policies.items()
        for request in run.requests
        if request.diverged_at is not None
    ]
    return _cap(("Policy", "Job", "Turn", "First differing token"), rows)


def list_notes(report: Report) -> list[str]:
    """List what each record has lost, and the notes that its jobs carry; a note of all runs once."""
    of_all = set.intersection(*(set(record.notes) for record in report.runs.values()))
    notes = {
        note if note in of_all or len(report.runs) == 1 else f"{name}: {note}": None
        for name, record in report.runs.items()
        for note in (*report.losses[name], *record.notes)
    }
    return list(notes)


def describe_files(report: Report) -> Iterator[str]:
    """Describe the files of the report and of the runs it was made from."""
    where = f" in each of {', '.join(report.runs)}" if len(report.runs) > 1 else ""
    yield f"{SUMMARY_FILE}: every figure of this page, and what was run"
    yield f"{HTML_FILE}: the table and the plots"
    if report.points:
        yield f"{HTML_FILE}{where}: what else one number of lanes shows, over time and by length of prompts"
    yield f"{RUN_FILE}, {EVENTS_FILE}{where}: the record that this was made from"


def _cap(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Listing:
    return Listing(columns, rows[:MAX_LISTED], max(0, len(rows) - MAX_LISTED))


def _clip(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_CAUSE else line[: MAX_CAUSE - 1] + "…"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _show(value: object) -> str:
    return NO_DATA if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _show_all(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items()) or NO_DATA
