"""Reads and refuses recorded files for all loaders, and holds the jobs that they give."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from agentcache.errors import InputError, in_one_line
from tool_runtime.agent.job import Job


@dataclass(frozen=True, slots=True)
class LoadedJobs:
    """Jobs in order of arrival. `notes` are for the report: what is recorded, what is ours, what is left out.

    `losses` are those of the notes that say what could not be read, or was never recorded.
    """

    jobs: list[Job]
    notes: tuple[str, ...]
    losses: tuple[str, ...] = ()


class Record(BaseModel):
    """Base of what files hold: nothing is converted, and a field that is not known is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())


RecordT = TypeVar("RecordT", bound=BaseModel)


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Read the lines with something on them, numbered. Raises InputError if it finds none, or cannot read the file."""
    refuse_compressed(path)
    empty = True
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    empty = False
                    yield number, line
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({in_one_line(error)})") from None
    if empty:
        raise InputError(f"{path}: holds no entries")


def read_whole(path: Path) -> bytes:
    """Read a file that is one record. Raises InputError if it cannot be read."""
    refuse_compressed(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({in_one_line(error)})") from None


# How files begin that must be made text first.
_PACKED = {
    b"\x1f\x8b": "gunzip",
    b"\x28\xb5\x2f\xfd": "zstd -d",
    b"PK\x03\x04": "unzip",
    b"PAR1": "parquet-tools cat --json",
}


def refuse_compressed(path: Path) -> None:
    """Raise InputError for a file that must be unpacked first."""
    if not path.is_file():  # What comes through a pipe can be read once.
        return
    with suppress(OSError), path.open("rb") as file:
        begins = file.read(4)
        if unpack := next((command for magic, command in _PACKED.items() if begins.startswith(magic)), None):
            raise InputError(f"{path}: is compressed; unpack it first, with `{unpack}`, and a .tar with `tar -x`")


def parse_record(kind: type[RecordT], text: bytes, place: str, tags: Collection[str] = ()) -> RecordT:
    """Parse a record. Raises InputError "place: field: what".

    `tags` name members of a union: they are no part of a field's name.
    """
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"] if part not in tags
        )
        what = first["msg"]
        if b"\n" not in text.rstrip():
            # Of a file of lines: `place` has the number.
            what = re.sub(r" at line \d+ column \d+$", "", what)
        raise InputError(f"{place}: {field.removeprefix('.') + ': ' if field else ''}{what}") from None


def check_enough(jobs: int | None, available: int, path: Path) -> None:
    """Raise InputError if there are fewer jobs `available` than wanted, or none; None wants what there is."""
    if available == 0:
        raise InputError(f"{path}: no job is within --max-context; raise it or lower --scale")
    if jobs is not None and jobs > available:
        raise InputError(f"--jobs {jobs}: {path} gives {available} with these options; give 1 to {available}")
