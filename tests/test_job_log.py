"""A line for each job that is over, whatever the disk does."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from agentcache import job_log, outbox
from agentcache.errors import InputError
from agentcache.job_log import JobLog, JobNames, check_logs

KEY = b"secret"
SUMMARY = {"version": 1, "prompt_tokens": 100, "threads": ["private-agent"], "parents": ["above"]}


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(given: Path | str, *jobs: str, rank: int = 0) -> JobLog:
    log = JobLog(str(given), rank, JobNames(str(given), KEY))
    for job in jobs:
        log.write(SUMMARY, f"{job}@tenant", job)
    log.close()
    return log


def test_names_are_left_out_and_lines_of_one_job_know_each_other(tmp_path: Path) -> None:
    file, other = tmp_path / "jobs.jsonl", tmp_path / "jobs-rank1.jsonl"
    write(file, "private-session", "another")
    # The engine that the job has moved to.
    write(file, "private-session", rank=1)
    assert "private" not in file.read_text() + other.read_text()
    first, second = read(file)
    (moved,) = read(other)
    assert first["job"] == moved["job"] != second["job"]
    assert (first["engine"], moved["engine"], first["prompt_tokens"]) == (0, 1, 100)
    assert first["threads"] == moved["threads"] != SUMMARY["threads"]
    assert "session" not in first


def test_names_are_written_where_the_operator_says_so(tmp_path: Path) -> None:
    write(f"named:{tmp_path / 'jobs'}", "one\nline")
    (line,) = read(tmp_path / "jobs")
    assert (line["session"], line["threads"]) == ("one\nline", ["private-agent"])


def test_only_its_owner_reads_it_and_lines_are_added(tmp_path: Path) -> None:
    file = tmp_path / "jobs"
    for job in "ab":
        write(file, job)
    assert len(read(file)) == 2
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_line_that_was_never_finished_spoils_no_other(tmp_path: Path) -> None:
    file = tmp_path / "jobs"
    file.write_text('{"version": 1, "pro')
    write(file, "a")
    assert json.loads(file.read_text().splitlines()[1])["version"] == 1


def test_a_file_that_was_moved_away_begins_anew(tmp_path: Path) -> None:
    file, log = tmp_path / "jobs", JobLog(str(tmp_path / "jobs"), 0, JobNames(None, KEY))
    file.write_text("")
    file.rename(tmp_path / "jobs.1")
    log.write(SUMMARY, "a", "a")
    log.close()
    assert len(read(file)) == 1


def test_a_full_disk_costs_lines_and_is_told_once(vllm_log: pytest.LogCaptureFixture) -> None:
    full = write("/dev/full", "a", "b", "c")
    assert full.lost == 3
    assert vllm_log.text.count("No space left on device") == 1


class HalfFile(job_log.FileIO):
    """A disk that takes the beginning of each line."""

    def write(self, data: Any, /) -> int:
        return super().write(data[:10])


def test_a_line_that_does_not_fit_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "jobs"
    write(file, "a")
    whole = file.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(job_log, "FileIO", HalfFile)
        assert write(file, "b").lost == 1
    assert file.read_bytes() == whole


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """A disk that answers only when the event is set."""
    goes_on = Event()
    monkeypatch.setattr(job_log, "_append", lambda *_: goes_on.wait(60))
    yield goes_on
    goes_on.set()


def test_a_disk_that_hangs_holds_up_nobody(
    tmp_path: Path, stuck: Event, monkeypatch: pytest.MonkeyPatch, vllm_log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outbox, "_MOST_WAITING", 3)
    monkeypatch.setattr(outbox, "_LAST_S", 0.01)
    log = JobLog(str(tmp_path / "jobs"), 0, JobNames(None, KEY))
    for _ in range(10):
        log.write(SUMMARY, "a", "a")
    # One more may be in the thread's hands.
    assert log.lost in (6, 7)
    log.close()
    assert vllm_log.text.count("is too slow") == 1
    assert not stuck.is_set()


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "none" / "jobs", tmp_path / "pipe"):
        with pytest.raises(
            InputError, match=rf"^additional_config: agentcache.runtime.job_log: {path}: .*; name a file"
        ):
            check_logs(f"named:{path}", [0])
    check_logs(str(tmp_path / "jobs"), [0, 1])
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "jobs", "jobs-rank1"}
    check_logs(None, [0])
