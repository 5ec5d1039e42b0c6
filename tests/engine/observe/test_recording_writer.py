from __future__ import annotations

import json
from threading import Event, current_thread
from typing import Any

import pytest
from endless_recording import make_header, make_request

from tool_runtime.learning.tool_key import ToolKey
from workloads.recording import writer as line_writer
from workloads.recording.line_maker import LineMaker
from workloads.recording.writer import LineWriter


class SlowFile:
    """Takes a line when it is let go on."""

    begins_file = False

    def __init__(self) -> None:
        self.reached, self.goes_on = Event(), Event()
        self.lines: list[dict[str, Any]] = []

    def write(self, line: bytes) -> None:
        self.reached.set()
        self.goes_on.wait()
        self.lines.append(json.loads(line))

    def close(self) -> None:
        pass


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch) -> SlowFile:
    monkeypatch.setattr(line_writer, "_MOST_WAITING", 2)
    monkeypatch.setattr(line_writer, "_TOGETHER", 1)
    return SlowFile()


def make_writer(file: SlowFile) -> LineWriter:
    """It is at the first request, so that two more find room."""
    lines = LineMaker(key=b"key", block_tokens=512, tool_names=False, started_s=0.0)
    writer = LineWriter(file, lines, make_header("start"))  # type: ignore[arg-type]
    writer.write(make_request(1))
    file.reached.wait()
    return writer


def test_lost_requests_are_counted_where_they_are_missing(file: SlowFile) -> None:
    writer = make_writer(file)
    for number in range(2, 6):
        writer.write(make_request(number))
    file.goes_on.set()
    while len(file.lines) < 3:
        file.reached.wait()
    writer.write(make_request(6))
    writer.close()
    assert [(line["output_length"], line.get("lost", 0)) for line in file.lines] == [(1, 0), (2, 0), (3, 0), (6, 2)]


def test_a_disk_that_does_not_answer_lets_the_server_end(file: SlowFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_writer, "_LAST_WRITES_S", 0.01)
    writer = make_writer(file)
    for number in range(2, 4):
        writer.write(make_request(number))
    writer.close()
    assert file.lines == []
    file.goes_on.set()


def test_calls_are_read_in_the_thread_that_writes(file: SlowFile) -> None:
    readers = []

    def find_calls() -> list[ToolKey]:
        readers.append(current_thread().name)
        return [ToolKey("look"), ToolKey("look", "make")]

    writer = make_writer(file)
    writer.write(make_request(2), find_calls)
    writer.write(make_request(3), list)
    file.goes_on.set()
    writer.close()
    assert [(line["end"], len(line.get("called", ()))) for line in file.lines] == [
        ("answer", 0),
        ("calls", 2),
        ("answer", 0),
    ]
    assert readers == ["agentcache-record"]


@pytest.mark.parametrize(("together", "longest_wait_s", "count"), [(3, 3600, 3), (3, 0.01, 1)], ids=["many", "late"])
def test_requests_wait_for_few_others_and_not_for_long(
    together: int, longest_wait_s: float, count: int, file: SlowFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_writer, "_MOST_WAITING", 10)
    monkeypatch.setattr(line_writer, "_TOGETHER", together)
    monkeypatch.setattr(line_writer, "_LONGEST_WAIT_S", longest_wait_s)
    lines = LineMaker(key=b"key", block_tokens=512, tool_names=False, started_s=0.0)
    writer = LineWriter(file, lines, make_header("start"))  # type: ignore[arg-type]
    for number in range(count):
        writer.write(make_request(number))
    assert file.reached.wait(10)
    file.goes_on.set()
    writer.close()
    assert len(file.lines) == count
