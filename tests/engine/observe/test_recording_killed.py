"""A process that records is killed while it writes: what it leaves, and what the next start makes of that."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from endless_recording import FILES, MAX_BYTES, record

from workloads.recording.reader import read_recording

_PROGRAM = Path(__file__).with_name("endless_recording.py")


@pytest.mark.engine
def test_a_killed_recording_is_read_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    full = [tmp_path / f"r.jsonl.{number}" for number in range(1, FILES)]
    with subprocess.Popen([sys.executable, str(_PROGRAM), str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begins\n"
        while not (full[-1].exists() and _is_half_full(path)):
            assert process.poll() is None, "it ends when it is killed"
        process.kill()

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
