"""Writes `summary.json` and `report.html` from the folder of a run, or of several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from agentcache.errors import InputError
from agentcache.output_folder import check_writable
from agentcache.report.comparison import compare_policies
from agentcache.report.content import HTML_FILE, SUMMARY_FILE, Report
from agentcache.report.events import EVENTS_FILE, RunRecord, is_cut_off, read_events, read_run_record
from agentcache.report.html import render_html
from agentcache.report.lane_points import make_points
from agentcache.report.policy_run import PolicyRun, group_by_policy, put_stock_first
from agentcache.report.summary import PolicySummary, summarize


def read_report(folders: Sequence[Path]) -> Report:
    """Read the runs, each event once. Of several runs, policies are named "FOLDER: POLICY".

    Raises InputError for a folder that holds no run, a broken line, or a folder given twice.
    """
    records: dict[str, RunRecord] = {}
    policies: dict[str, PolicyRun] = {}
    losses: dict[str, list[str]] = {}
    shown: dict[str, dict[str, str]] = {}
    for name, folder in _name_folders(folders).items():
        records[name] = read_run_record(folder)
        runs = group_by_policy(read_events(folder))
        losses[name] = list(_find_losses(folder, records[name], runs))
        shown[name] = {policy: f"{name}: {policy}" if len(folders) > 1 else policy for policy in runs}
        policies |= {shown[name][policy]: run for policy, run in runs.items()}
    policies = put_stock_first(policies)
    run_or_runs = records if len(records) > 1 else next(iter(records.values()))
    summary = summarize(run_or_runs, policies)
    verdict = compare_policies(list(records.values()), policies, summary.policies)
    summary = summary.model_copy(update={"verdict": verdict})

    def figures_of(name: str) -> dict[str, PolicySummary]:
        return {policy: summary.policies[key] for policy, key in shown[name].items()}

    points = make_points([(record, figures_of(name)) for name, record in records.items()])
    return Report(records, policies, summary, losses, points)


def write_report(folders: Sequence[Path], out: Path) -> Report:
    """Write both files into `out`, which is made if need be. Of several folders the report compares the runs."""
    check_writable(out)
    report = read_report(folders)
    out.mkdir(parents=True, exist_ok=True)
    (out / SUMMARY_FILE).write_text(report.summary.model_dump_json(indent=2) + "\n", encoding="utf-8")
    (out / HTML_FILE).write_text(render_html(report), encoding="utf-8")
    return report


def _find_losses(folder: Path, record: RunRecord, runs: Mapping[str, PolicyRun]) -> Iterator[str]:
    if is_cut_off(folder):
        yield f"{EVENTS_FILE}: the last line is cut off, and what it recorded is left out."
    for policy, run in runs.items():
        if (unheard := record.jobs - len(run.jobs) - len(run.open_jobs)) > 0:
            jobs = f"{unheard:,} of the {record.jobs:,} jobs under {policy}"
            yield f"{EVENTS_FILE}: no line tells of {jobs}: they never began, or their lines were lost."


def _name_folders(folders: Sequence[Path]) -> dict[str, Path]:
    """Name folders by their last name, or by the whole path where two end in the same name."""
    if not folders:
        raise InputError("no run given; give one or more --out folders of a replay")
    paths = [folder.resolve() for folder in folders]
    if len(set(paths)) < len(paths):
        raise InputError("the same run is given twice; give each folder once")
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    return dict(zip(names, folders, strict=True))
