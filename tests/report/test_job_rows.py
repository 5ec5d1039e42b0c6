"""The table of the slowest jobs: what each took, and how many are left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from made_run import make_events, make_job, make_request, write_run

from agentcache.report.builder import read_report
from agentcache.report.content import MAX_LISTED, Listing
from agentcache.report.events import Event, PolicyEvent
from agentcache.report.job_rows import COLUMNS, list_slowest_jobs


def list_of(folder: Path, events: Sequence[Event]) -> Listing:
    return list_slowest_jobs(read_report([write_run(folder / "run", events)]))


def test_the_slowest_come_first_and_the_rest_is_counted(tmp_path: Path) -> None:
    events = [*make_events("lru", 30), *make_events("agentcache", 3)]
    listing = list_of(tmp_path, events)
    latencies = [float(row[3]) for row in listing.rows if row[0] == "lru"]
    assert len(latencies) == MAX_LISTED // 2
    assert latencies == sorted(latencies, reverse=True)
    longest = max(each.finished_s - each.started_s for each in events if each.type == "job" and each.policy == "lru")
    assert abs(latencies[0] - longest) < longest / 100
    assert listing.left_out == 33 - len(listing.rows) == 20


def test_a_row_says_what_a_job_took(tmp_path: Path) -> None:
    sizes = {"prompt_tokens": 100, "output_tokens": 7, "queue_s": 0.25}
    requests = [
        make_request("lru", "a", turn, 10.0 * turn, 2.0).model_copy(
            update={**sizes, "cached_tokens": 60 * turn, "first_token_s": 10.0 * turn + 1.5}
        )
        for turn in range(2)
    ]
    failed = make_job("lru", "b", 0.0, 99.0, turns=1, status="failed", error="500")
    listing = list_of(tmp_path, [*requests, make_job("lru", "a", 0.0, 12.0, turns=2), failed])
    assert listing.columns == ("Policy", "Job", *COLUMNS)
    assert listing.rows == [("lru", "a", "2", "12.0", "1.50", "200", "30.0 %", "14", "0.500")]


def test_turns_of_sub_agents_are_told_beside_the_jobs(tmp_path: Path) -> None:
    threads = {"a": (None, "x", "x", "y"), "b": (None, "x"), "c": (None,)}
    requests = [
        make_request("lru", job, turn, 10.0 * turn, 2.0, thread=thread)
        for job, own in threads.items()
        for turn, thread in enumerate(own)
    ]
    jobs = [make_job("lru", job, 0.0, 20.0) for job in threads]
    turns = [row[2] for row in list_of(tmp_path, [*requests, *jobs]).rows]
    assert turns == ["4 (3 by 2 sub-agents)", "2 (1 by 1 sub-agent)", "1"]


def test_closed_loops_have_no_such_table(tmp_path: Path) -> None:
    end = PolicyEvent(policy="lru", window_s=(0.0, 50.0))
    assert list_of(tmp_path, [make_job("lru", "a", 0.0, 12.0, turns=1), end]).rows == []
