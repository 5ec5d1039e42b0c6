"""The files of a recording: lines go in whole; a full file moves on to FILE.1, that one to FILE.2, the last is lost."""

from __future__ import annotations

from io import FileIO
from pathlib import Path


class LineFile:
    """Appends lines, each with one unbuffered write: a process that is killed leaves whole lines behind.

    What stood at `path` before moves on to FILE.1 with the first line. At most `files` files of about `max_bytes` stay.
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
            self.close()
            self._move_on()
            self._file = self._path.open("ab", buffering=0)
            self._written = 0
        assert self._file is not None
        try:
            if self._file.write(line) != len(line):
                raise OSError(f"{self._path}: the disk takes no more")
        except OSError:
            self._file.truncate(self._written)
            raise
        self._written += len(line)

    def close(self) -> None:
        """Close the file, if one is open."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _move_on(self) -> None:
        if not self._path.exists():
            return
        for number in range(self._files - 1, 0, -1):
            before = self._path if number == 1 else self._numbered(number - 1)
            if before.exists():
                before.replace(self._numbered(number))
        self._path.unlink(missing_ok=True)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
