"""What a scheduler records, simulated again: it is the same run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_command import make_settings
from recorded_lines import make_line, write_recording
from sizes import pick_size

from agentcache.report.builder import write_report
from agentcache.report.events import RequestEvent, read_events
from agentcache.report.terminal import show_report, show_summary
from agentcache.sim.command import simulate

pytestmark = pytest.mark.usefixtures("without_plots")


def _requests(out: Path) -> list[RequestEvent]:
    return [event for event in read_events(out) if isinstance(event, RequestEvent)]


def _hits(requests: list[RequestEvent]) -> float:
    return sum(each.cached_tokens or 0 for each in requests) / sum(each.prompt_tokens for each in requests)


@pytest.mark.parametrize("policy", ["agentcache", "vllm"][: pick_size(1, 2)])
def test_a_recorded_run_is_simulated_as_it_was(policy: str, tmp_path: Path) -> None:
    record: dict[str, Any] = {"file": str(tmp_path / "r.jsonl")}
    first = make_settings(
        tmp_path / "first", policies=(policy,), knobs={"record": record, "tuning": {"record_block_tokens": 64}}
    )
    assert simulate(first)[0] == 0
    again = make_settings(tmp_path / "again", policies=(policy,), workload=f"recording:{tmp_path / 'r.jsonl'}")
    assert simulate(again)[0] == 0
    before, after = _requests(first.out), _requests(again.out)
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert len(lines) == len(before) == len(after)
    # Lines stand in the order in which the engine was done, events in the order in which the replies came.
    assert sorted(each.get("cached_length", 0) for each in lines) == sorted(each.cached_tokens or 0 for each in before)
    assert sorted((each.prompt_tokens, each.output_tokens) for each in before) == sorted(
        (each.prompt_tokens, each.output_tokens) for each in after
    )
    assert abs(_hits(before) - _hits(after)) < 0.03
    ends = [max(each.finished_s for each in requests) for requests in (before, after)]
    assert ends[1] == pytest.approx(ends[0], rel=0.03)


def test_broken_lines_are_told_once_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_recording(tmp_path / "r.jsonl", *(make_line(time, 50, 5, list(range(5)), lost=1) for time in (0, 200)))
    path.write_text(path.read_text() + "{\n")
    outs = [tmp_path / "first", tmp_path / "second"]
    for out in outs:
        summary = simulate(make_settings(out, workload=f"recording:{path}"))[1]
    show_summary(summary, outs[1])
    alone = capsys.readouterr().out
    show_report(write_report(outs, tmp_path / "both"), tmp_path / "both")
    for lines in (alone, capsys.readouterr().out):
        shown = " ".join(lines.split())
        assert shown.count(f"Broken lines that were skipped: 1 ({path}:3: Invalid JSON") == 1
        assert shown.count("Requests that are missing because the disk was too slow when they were recorded: 2.") == 1
