"""What `benchmarks/replicas.py` makes of its rows, and the figures of families and of GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from family_figures import describe_families, find_homes, read_homes, see_how_families_fared
from gpu_watch import Sample, find_busy_share, find_span
from made_run import make_job, make_record, make_request, write_run
from replicas import Load, Row, write_table
from row_figures import write_markdown

from agentcache.report.events import JobEvent, PolicyEvent, RequestEvent
from agentcache.report.policy_run import PolicyRun
from agentcache.report.table import NO_DATA

LOADS = {name: Load.read(name, "3,4", "bfcl --rate 1") for name in ("knee", "past")}
RECORD = make_record(started_at="2026-11-30T10:00:00+00:00")
BEGAN_S = 1_796_032_800.0


def ask(job: str, sent_s: float, first_s: float, thread: str | None = None) -> RequestEvent:
    sizes = {"prompt_tokens": 100, "output_tokens": 10, "cached_tokens": 50}
    return make_request("server", job, 0, sent_s, first_s, reply_s=1, thread=thread, **sizes)


def end(job: str, latency_s: float) -> JobEvent:
    return make_job("server", job, 0, latency_s)


def make_run() -> PolicyRun:
    """A parent with a sub-agent, and a stranger."""
    run = PolicyRun()
    for event in (ask("p", 0, 9), ask("p", 1, 9, thread="a"), ask("s", 5, 0.25), end("p", 40), end("s", 7)):
        run.add(event)
    return run


def test_a_row_without_a_load_runs_under_each() -> None:
    assert [row.name for row in Row.read("vllm+programs", LOADS)] == ["knee-vllm+programs", "past-vllm+programs"]
    (row,) = Row.read("past:agentcache+alone", LOADS)
    assert (row.load.name, row.policy, row.vllm_router) == ("past", "agentcache", None)
    assert row.find_folders(Path("out")) == [Path("out/past-agentcache+alone-3"), Path("out/past-agentcache+alone-4")]


@pytest.mark.parametrize("text", ["peak:vllm", "knee:vllm+random"])
def test_what_is_no_row_is_refused(text: str) -> None:
    with pytest.raises(SystemExit, match="give one of"):
        Row.read(text, LOADS)


def test_the_table_has_rows_and_columns_with_data(tmp_path: Path) -> None:
    rows = Row.read("vllm", LOADS)
    assert write_table(rows, tmp_path) == write_markdown([])
    for folder in rows[0].find_folders(tmp_path):
        run = make_run()
        write_run(folder, [*run.requests, *run.jobs, PolicyEvent(policy="server")])
    seen = {"computed_tokens": [30, 10], "homes": {"p": [0, 1], "q": [1]}, "busy": None}
    rows[0].find_figures(tmp_path).write_text(json.dumps(seen))
    table = write_table(rows, tmp_path)
    head, _, line = table.splitlines()
    shown = dict(zip(head.split(" | "), line.split(" | "), strict=True))
    assert shown["| row"] == "| knee-vllm"
    assert (shown["parents, mean (s)"], shown["families split"], shown["busiest |"]) == ("40.0", "1 of 2", "1.50 |")
    assert "busy" not in table
    assert (tmp_path / "table.md").read_text() == table


def test_parents_are_told_from_strangers_in_each_run() -> None:
    """Jobs of two runs may have one name."""
    alone = PolicyRun()
    for event in (ask("p", 0, 2), end("p", 4)):
        alone.add(event)
    assert see_how_families_fared([alone]) == ([], [])
    assert see_how_families_fared([make_run(), alone]) == ([40], [0.25])
    assert describe_families([make_run()], {}) == ["40.0", "0.25", NO_DATA]


def test_a_family_is_at_all_engines_of_its_agents() -> None:
    asked = [("p", None, 0), ("p", "a", 0), ("p", "b", 2), ("q", "a", 1), ("s", None, 0), ("s", None, 1)]
    assert find_homes(asked) == {"p": {0, 2}, "q": {1}}


def test_homes_are_read_from_the_files_of_all_engines(tmp_path: Path) -> None:
    line = {"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0], "reply_ids": [], "latency_ms": 1}
    for name, more in (("r", {"session": "p"}), ("r-rank1", {"session": "p", "thread": "a"}), ("r-rank3", {})):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({**line, "end": "answer", **more}) + "\n")
    assert read_homes(tmp_path / "r.jsonl", engines=4) == {"p": {0, 1}}


def test_gpus_are_busy_between_first_request_and_last_reply() -> None:
    run = PolicyRun(requests=[ask("p", 2, 1), ask("s", 5, 2)])
    assert find_span(RECORD, run) == (BEGAN_S + 2, BEGAN_S + 8)
    run.end = PolicyEvent(policy="server", window_s=(3, 4))
    assert find_span(RECORD, run) == (BEGAN_S + 3, BEGAN_S + 4)
    samples = [Sample(BEGAN_S + second, busy) for second, busy in ((1, 0.0), (3, 1.0), (4, 0.5), (9, 0.0))]
    assert find_busy_share(samples, [(BEGAN_S + 2, BEGAN_S + 3), (BEGAN_S + 3, BEGAN_S + 4)]) == 0.75
    assert find_busy_share([], [(0, 1)]) is None
