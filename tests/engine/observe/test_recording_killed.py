"""A process that records is killed while it writes: what it leaves, and what the next start makes of that."""

from __future__ import annotations

import itertools
import json
import time
from itertools import pairwise
from pathlib import Path

import pytest
from endless_recording import FILES, MAX_BYTES, record
from loaded_once import get_context

from workloads.recording.reader import read_recording


@pytest.mark.engine
@pytest.mark.usefixtures("forkserver")
def test_a_killed_recording_is_read_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    full = [tmp_path / f"r.jsonl.{number}" for number in range(1, FILES)]
    process = get_context().Process(target=record, args=(path, "endless", itertools.count(1)))
    process.start()
    while not (full[-1].exists() and _is_half_full(path)):
        assert process.is_alive(), "it ends when it is killed"
        time.sleep(0.01)
    process.kill()
    process.join()

    left = read_recording(path)
    # Over the borders of files nothing is missing that is not counted.
    for before, after in pairwise(left.requests):
        assert after.output_length == before.output_length + 1 + after.lost
    whole, _, rest = path.read_bytes().rpartition(b"\n")
    assert len(left.broken) == bool(rest)
    assert len(left.requests) == sum(each.read_bytes().count(b"\n") for each in (path, *full))

    record(path, "restart", [1])
    assert full[0].read_bytes() == whole + b"\n"
    for each in (path, *full):
        assert all(json.loads(line) for line in each.read_bytes().splitlines())
    again = read_recording(path)
    assert (again.header.id, len(again.requests), again.broken) == ("restart", 1, ())


def _is_half_full(path: Path) -> bool:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        # It has just moved on.
        return False
    return MAX_BYTES / 4 < size < MAX_BYTES / 2
