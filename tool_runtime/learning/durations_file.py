"""Saves duration records, so that a restart forgets nothing, and merges those of several engines.

A damaged file is moved aside, and serving goes on. Files of anything else are left alone.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tool_runtime.bounds import Seconds
from tool_runtime.learning.durations import RecordState
from tool_runtime.learning.tool_key import ToolKey
from tool_runtime.learning.ttl import MAX_COUNT, MAX_TOTAL_S

MAX_FILE_BYTES = 64 * 2**20
# How a file of ours begins, also when it is damaged further on.
_MARK = re.compile(rb'\s*\{\s*"format"\s*:\s*"agentcache durations"')
_MARK_BYTES = 256

_Name = Annotated[str, Field(max_length=256)]


class ForeignFileError(Exception):
    """The path holds something that is not ours to replace."""


class _StoredRecord(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    tool: _Name
    command: _Name
    count: Annotated[int, Field(ge=0, le=MAX_COUNT)]
    total_s: Annotated[float, Field(ge=0, le=MAX_TOTAL_S, allow_inf_nan=False)]
    samples: list[tuple[Seconds, Seconds, bool]]


class _StoredDurations(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    format: Literal["agentcache durations"] = "agentcache durations"
    version: Literal[1] = 1
    records: list[_StoredRecord]


def save_durations(states: Iterable[RecordState], path: Path) -> str | None:
    """Write what `Durations.dump` gave, all or nothing; a line for the log if it could not be written."""
    stored = _StoredDurations(
        records=[
            _StoredRecord(
                # A name may hold half a surrogate pair, as JSON can spell it; UTF-8 cannot.
                tool=state.key.tool.encode("utf-8", "replace").decode(),
                command=state.key.command.encode("utf-8", "replace").decode(),
                count=state.count,
                total_s=state.total_s,
                samples=list(state.samples),
            )
            for state in states
        ]
    )
    try:
        _replace_file(path, stored.model_dump_json().encode())
    except OSError as error:
        return f"{path}: tool durations were not saved: {error.strerror or error}"
    return None


def check_file(path: Path) -> None:
    """Raise ForeignFileError unless there is no such file, or an empty one, or one that begins as ours do."""
    _read_file(path, _MARK_BYTES)


def load_durations(path: Path) -> tuple[list[RecordState], str | None]:
    """Load what `Durations.restore` takes; nothing, and a line for the log, if the file is damaged.

    Such a file is moved aside, so that the next save destroys nothing. A missing file is no reason for a warning.
    Raises ForeignFileError as `check_file` does.
    """
    content = _read_file(path, MAX_FILE_BYTES + 1)
    if not content:
        return [], None
    try:
        if len(content) > MAX_FILE_BYTES:
            raise ValueError(f"larger than {MAX_FILE_BYTES} bytes")
        stored = _StoredDurations.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return [], _move_aside(path, f"{where}: {first['msg']}" if where else first["msg"])
    except ValueError as error:
        return [], _move_aside(path, str(error))
    return _unpack(stored), None


def read_states(path: Path) -> list[RecordState]:
    """Read another engine's file; nothing if it is missing, damaged or of anything else. Changes nothing."""
    try:
        content = _read_file(path, MAX_FILE_BYTES)
        return _unpack(_StoredDurations.model_validate_json(content)) if content else []
    except (ForeignFileError, ValidationError):
        return []


def _unpack(stored: _StoredDurations) -> list[RecordState]:
    return [
        RecordState(ToolKey(record.tool, record.command), record.count, record.total_s, tuple(record.samples))
        for record in stored.records
    ]


def _read_file(path: Path, size: int) -> bytes:
    """Read the first `size` bytes; empty if there is no such file."""
    try:
        # Opening a pipe would wait for its writer, and opening a device may do anything.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ForeignFileError(f"{path} is not a regular file; name one that agentcache may replace")
        with path.open("rb") as file:
            content = file.read(size)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ForeignFileError(
            f"{path} cannot be read ({error.strerror}); name a file that agentcache may replace"
        ) from error
    if content and not _MARK.match(content):
        raise ForeignFileError(f"{path} is not a file of tool durations; name one that agentcache may replace")
    return content


def _move_aside(path: Path, reason: str) -> str:
    aside = _find_free_name(path)
    try:
        path.rename(aside)
    except OSError as error:
        return f"{path}: tool durations are damaged ({reason}), nor can they be moved: {error.strerror or error}"
    return f"{path}: tool durations are damaged ({reason}); moved to {aside.name}, starting without"


def _find_free_name(path: Path) -> Path:
    """Find a name that is free: damaged files of earlier starts are kept."""
    names = (path.with_name(f"{path.name}.damaged{'' if number == 1 else f'.{number}'}") for number in count(1))
    return next(name for name in names if not os.path.lexists(name))


def _replace_file(path: Path, content: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


# Files of engines that are no more are read as well; their knowledge is as good.
MAX_FILES = 64


def find_siblings(path: Path) -> list[Path]:
    """Find the other engines' files beside this one: PATH, and PATH.RANK for each rank but the first; at most 64."""
    rank = path.suffix[1:]
    base = path.with_suffix("") if rank.isascii() and rank.isdigit() else path
    ranked = [each for each in base.parent.glob(f"{base.name}.*") if each.suffix[1:].isdigit()]
    return sorted({base, *ranked} - {path})[:MAX_FILES]


def read_siblings(path: Path) -> list[RecordState]:
    """Read what the other engines have saved, as one; a file that is missing or damaged tells nothing."""
    return merge_states([read_states(each) for each in find_siblings(path)])


def merge_states(dumps: Iterable[Sequence[RecordState]]) -> list[RecordState]:
    """Merge dumps of several engines: counts and sums are added, samples put in order of age, the oldest first."""
    merged: dict[ToolKey, RecordState] = {}
    for state in (state for dump in dumps for state in dump):
        known = merged.pop(state.key, RecordState(state.key, 0, 0.0, ()))
        merged[state.key] = RecordState(
            state.key,
            min(known.count + state.count, MAX_COUNT),
            min(known.total_s + state.total_s, MAX_TOTAL_S),
            tuple(sorted((*known.samples, *state.samples), key=lambda sample: -sample[1])),
        )
    return list(merged.values())
