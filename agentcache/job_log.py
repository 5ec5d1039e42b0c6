"""Writes a line for each job that is over, in a thread: the engine never waits for the disk."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from typing import Any

from agentcache.config_reader import PLACE
from agentcache.errors import InputError
from agentcache.outbox import Outbox
from workloads.recording.line import name_file

# What stands before a file that is to have the names that clients give.
_NAMED = "named:"


class JobNames:
    """Calls jobs, outside of the engine, as their clients do where the operator says so, else by ids."""

    def __init__(self, job_log: str | None, key: bytes) -> None:
        """Begin; `job_log` is the knob. Equal names have equal ids under one `key`."""
        self.are_told = (job_log or "").startswith(_NAMED)
        self._key = key

    def make_id(self, name: str) -> str:
        """Make the id of the job of that name in the table, or of an agent."""
        return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, key=self._key, person=b"job").hexdigest()


class JobLog(Outbox[bytes]):
    """The file of one engine, opened anew for each line: it may be moved away meanwhile. `lost` lines are missing."""

    def __init__(self, given: str, rank: int, names: JobNames) -> None:
        """Begin; `given` is the knob, `rank` the engine's."""
        self._path = find_log(given, rank)
        self._rank = rank
        self._names = names
        warning = "A job is missing in the job log, and agentcache:job_log_lost_total counts more"
        super().__init__("agentcache-job-log", self._append, warning)

    def write(self, summary: Mapping[str, Any], job: str, session: str) -> None:
        """Have the job of that name in the table written soon. Never waits, and never fails."""
        make_id = self._names.make_id
        line = {"engine": self._rank, "job": make_id(job), **summary}
        # Clients may call an agent by its session.
        parents = [name and make_id(name) for name in summary["parents"]]
        hidden = {"threads": [*map(make_id, summary["threads"])], "parents": parents}
        named = {"session": session} if self._names.are_told else hidden
        self.put(json.dumps(line | named).encode() + b"\n")

    def _append(self, lines: list[bytes]) -> None:
        for line in lines:
            _append(self._path, line)


def find_log(given: str, rank: int) -> Path:
    """Return where the data-parallel engine `rank` writes its jobs."""
    return name_file(Path(given.removeprefix(_NAMED)), rank)


def check_logs(given: str | None, ranks: Iterable[int]) -> None:
    """Make the files of these engines. Raises InputError if one cannot be written."""
    for path in [] if given is None else [find_log(given, rank) for rank in ranks]:
        try:
            _append(path, b"")
        except OSError as error:
            problem = f"{PLACE}runtime.job_log: {path}: {error.strerror}; name a file that can be written"
            raise InputError(problem) from None


def _append(path: Path, line: bytes) -> None:
    """Append the line whole or not at all. Raises OSError."""
    # Other users cannot read it.
    with FileIO(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "a+") as file:
        end = file.seek(0, os.SEEK_END)
        if line and end and os.pread(file.fileno(), 1, end - 1) != b"\n":
            # A process was killed as it wrote its last line.
            line = b"\n" + line
        if file.write(line) != len(line):
            file.truncate(end)
            raise OSError(f"{path}: the disk takes no more")
