"""Writes a line for each job that is over, in a thread: the engine never waits for the disk."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import Any

from agentcache.config_reader import PLACE
from agentcache.errors import InputError
from workloads.recording.line import name_file

logger = logging.getLogger("vllm.agentcache")

# What stands before a file that is to have the names that clients give.
_NAMED = "named:"
# Lines that the disk is behind; more are left out.
_MOST_WAITING = 4096
# A disk that takes longer does not hold up the end of the server.
_LAST_WRITES_S = 5.0


class JobLog:
    """The file of one engine, opened anew for each line: it may be moved away meanwhile. `lost` lines are missing."""

    def __init__(self, given: str, rank: int, key: bytes) -> None:
        """Begin; `given` is the knob, `rank` the engine's. Equal names have equal ids under one `key`."""
        self._path = find_log(given, rank)
        self._has_names = given.startswith(_NAMED)
        self._rank = rank
        self._key = key
        self.lost = 0
        self._lines: Queue[bytes | None] = Queue(_MOST_WAITING)
        self._thread = Thread(target=self._run, name="agentcache-job-log", daemon=True)
        self._thread.start()

    def write(self, summary: Mapping[str, Any], job: str, session: str) -> None:
        """Have the job of that name in the table written soon. Never waits, and never fails."""
        line = {"engine": self._rank, "job": self._make_id(job), **summary}
        # Clients may call an agent by its session.
        named = {"session": session} if self._has_names else {"threads": [*map(self._make_id, summary["threads"])]}
        try:
            self._lines.put_nowait(json.dumps(line | named).encode() + b"\n")
        except Full:
            self._lose("the disk is too slow")

    def close(self) -> None:
        """Write what waits, within seconds. What comes later is not written."""
        with suppress(Full):
            self._lines.put_nowait(None)
        self._thread.join(_LAST_WRITES_S)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                _append(self._path, line)
            except OSError as error:
                self._lose(error)

    def _lose(self, cause: object) -> None:
        if not self.lost:
            logger.warning("A job is missing in the job log, and agentcache:job_log_lost_total counts more: %s", cause)
        self.lost += 1

    def _make_id(self, name: str) -> str:
        return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, key=self._key, person=b"job").hexdigest()


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
