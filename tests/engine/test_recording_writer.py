from __future__ import annotations

import json
from threading import Event
from typing import Any

import pytest
from endless_recording import make_header, make_request

from agentcache.engine.record import line_writer
from agentcache.engine.record.line_writer import LineWriter
from agentcache.engine.record.salted_line import LineMaker


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
