"""Makes and writes the lines of a recording in a thread, so that the engine waits for no parser, hash or disk.

A full FILE becomes FILE.1, that FILE.2; the last is deleted.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from io import FileIO
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread

from tool_runtime.learning.tool_key import ToolKey
from workloads.recording.line import Header
from workloads.recording.line_maker import LineMaker, RecordedRequest

# It writes while an engine serves, whose log this is.
logger = logging.getLogger("vllm.agentcache")

# How the first line of a recording begins. Another file that stood there is left as it is.
_BEGINNING = b'{"recording":'
_CHUNK = 2**16
# Lengths and times tell something of a conversation: a recording is for the user who makes it.
_MODE = 0o600


class LineFile:
    """Appends lines, each with one unbuffered write: a process that is killed leaves whole lines but for the last.

    That one may end early, as the kernel stops between two pages of a write. What stood at `path` before moves on to
    FILE.1 with the first line, without such a rest. Other users cannot read them. At most `files` files of about
    `max_bytes` stay. A new file takes its place when it has its first line: FILE is never empty, and its first line is
    whole.
    """

    def __init__(self, path: Path, *, max_bytes: int, files: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._files = files
        self._file: FileIO | None = None
        self._written = 0

    @property
    def begins_file(self) -> bool:
        """Tell whether the next line is the first of a file."""
        return self._file is None or self._written >= self._max_bytes

    def write(self, line: bytes) -> None:
        """Write a line that ends with a line feed. Raises OSError; what was written of the line is then taken back."""
        if self.begins_file:
            self._begin(line)
            return
        assert self._file is not None
        try:
            self._append(self._file, line)
        except OSError:
            self._file.truncate(self._written)
            raise
        self._written += len(line)

    def close(self) -> None:
        """Close the file, if one is open."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self, line: bytes) -> None:
        """Begin a file with the line. If the disk does not take it, all stays as it is."""
        new = self._path.with_name(f"{self._path.name}.new")
        new.unlink(missing_ok=True)
        new.touch(_MODE, exist_ok=False)
        file = new.open("ab", buffering=0)
        try:
            self._append(file, line)
            self._move_on()
            new.replace(self._path)
        except OSError:
            file.close()
            new.unlink(missing_ok=True)
            raise
        self.close()
        self._file, self._written = file, len(line)

    def _append(self, file: FileIO, line: bytes) -> None:
        if file.write(line) != len(line):
            raise OSError(f"{self._path}: the disk takes no more")

    def _move_on(self) -> None:
        parts = [self._path, *map(self._numbered, range(1, self._files))]
        for part in parts:
            # An earlier version let all users read it.
            if part.is_file() and part.stat().st_uid == os.geteuid() and _is_recording(part):
                part.chmod(_MODE)
        if not self._path.exists():
            return
        if _is_recording(self._path):
            _drop_unfinished(self._path)
        for before, after in reversed([*pairwise(parts)]):
            if before.exists():
                before.replace(after)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def _is_recording(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_BEGINNING)) == _BEGINNING


def _drop_unfinished(path: Path) -> None:
    """Take off what follows the last line feed: the line in whose write a process was killed."""
    with path.open("r+b") as file:
        start = file.seek(0, os.SEEK_END)
        while start:
            end, start = start, max(0, start - _CHUNK)
            file.seek(start)
            feed = file.read(end - start).rfind(b"\n")
            if feed >= 0:
                file.truncate(start + feed + 1)
                return


# Requests of which the disk is behind. More are left out, and the next line says how many.
_MOST_WAITING = 4096
# Requests that end soon after each other are written together, when code and data are in the CPU's caches, but none
# waits for longer than that. A process that is killed loses less than what was running.
_TOGETHER = 8
_LONGEST_WAIT_S = 0.5
# A disk that takes longer does not hold up the end of the server.
_LAST_WRITES_S = 5.0

# Reads which tools a reply calls.
FindCalls = Callable[[], Sequence[ToolKey]]


class LineWriter:
    """`header` is what the first line of each file carries."""

    def __init__(self, file: LineFile, lines: LineMaker, header: Header) -> None:
        self._file = file
        self._lines = lines
        self._header = header
        # Each with how many before it found no room.
        self._waiting: deque[tuple[RecordedRequest, FindCalls | None, int]] = deque()
        self._without_room = 0
        # So many up to the latest that the disk did not take.
        self._unwritten = 0
        self._goes_on = Event()
        self._is_closing = False
        # What has ended the thread too early.
        self._error: Exception | None = None
        self._thread = Thread(target=self._run, name="agentcache-record", daemon=True)
        self._thread.start()

    def write(self, request: RecordedRequest, find_calls: FindCalls | None = None) -> None:
        """Have the request written soon, or count it as lost. Never waits.

        `find_calls` tells the calls of a whole reply, in the writer's thread. Raises the error that has ended it.
        """
        self._check()
        if len(self._waiting) >= _MOST_WAITING:
            if not self._without_room:
                logger.warning("The disk is too slow for the recording, which leaves requests out.")
            self._without_room += 1
            return
        self._waiting.append((request, find_calls, self._without_room))
        self._without_room = 0
        if len(self._waiting) == _TOGETHER:
            self._goes_on.set()

    def stop(self) -> None:
        """Have what waits written, and the thread end then. Never waits."""
        self._is_closing = True
        self._goes_on.set()

    def close(self) -> None:
        """Write what waits, within seconds. Raises the error that has ended the thread."""
        self.stop()
        self._thread.join(_LAST_WRITES_S)
        self._check()
        if self._thread.is_alive():
            lost = len(self._waiting) + 1
            logger.warning("The disk does not answer, so the last %d requests are not recorded.", lost)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._write_all()
        except Exception as error:
            # For the engine's thread, which knows what to do with it.
            self._error = error
            self._waiting.clear()
        finally:
            self._file.close()

    def _write_all(self) -> None:
        is_last = False
        while not is_last:
            self._goes_on.wait(_LONGEST_WAIT_S)
            self._goes_on.clear()
            # Before the rest is taken: what comes before the end is written.
            is_last = self._is_closing
            while self._waiting:
                self._write(*self._waiting.popleft())

    def _write(self, request: RecordedRequest, find_calls: FindCalls | None, without_room: int) -> None:
        lost = self._unwritten + without_room
        header = self._header if self._file.begins_file else None
        if find_calls is not None and (calls := find_calls()):
            request.tools, request.end = [call.tool for call in calls], "calls"
        try:
            self._file.write(self._lines.make(request, lost, header))
        except OSError as error:
            if not self._unwritten:
                logger.warning("A request is missing in the recording: %s", error)
            self._unwritten = lost + 1
        else:
            self._unwritten = 0
