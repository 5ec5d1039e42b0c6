"""Writes whole lines to the files of a recording. A full FILE becomes FILE.1, that FILE.2; the last is deleted."""

from __future__ import annotations

import os
from io import FileIO
from itertools import pairwise
from pathlib import Path

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
