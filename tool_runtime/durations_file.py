"""Duration records on disk, so that a restart forgets nothing. Whatever is wrong with the file, serving goes on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tool_runtime.durations import RecordState
from tool_runtime.tool_key import ToolKey

MAX_FILE_BYTES = 64 * 2**20

_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Name = Annotated[str, Field(max_length=256)]


class _StoredRecord(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    tool: _Name
    command: _Name
    count: Annotated[int, Field(ge=0)]
    total_s: _Seconds
    samples: list[tuple[_Seconds, _Seconds, bool]]


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


def load_durations(path: Path) -> tuple[list[RecordState], str | None]:
    """What `Durations.restore` takes; nothing, and a line for the log, if the file holds anything else.

    Such a file is moved aside, so that the next save destroys nothing. A missing file is no reason for a warning.
    """
    try:
        stored = _StoredDurations.model_validate_json(_read_file(path))
    except FileNotFoundError:
        return [], None
    except OSError as error:
        return [], f"{path}: tool durations cannot be read, starting without: {error.strerror or error}"
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return [], _move_aside(path, f"{where}: {first['msg']}" if where else first["msg"])
    except ValueError as error:
        return [], _move_aside(path, str(error))
    return [
        RecordState(ToolKey(record.tool, record.command), record.count, record.total_s, tuple(record.samples))
        for record in stored.records
    ], None


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"larger than {MAX_FILE_BYTES} bytes")
    return content


def _move_aside(path: Path, reason: str) -> str:
    aside = path.with_name(path.name + ".damaged")
    try:
        path.replace(aside)
    except OSError as error:
        return f"{path}: no file of tool durations ({reason}), nor can it be moved: {error.strerror or error}"
    return f"{path}: no file of tool durations ({reason}); moved to {aside.name}, starting without"


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
