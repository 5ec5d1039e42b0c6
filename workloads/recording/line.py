"""Describes a recording: its files, and a line, one request with its times, sizes and equal blocks, but no text.

docs/recording.md describes the fields. Its first four are those of a Mooncake trace.
"""

from __future__ import annotations

import re
from glob import escape
from pathlib import Path
from typing import Literal

from pydantic import Field

from tool_runtime.bounds import BlockTokens, Count, Milliseconds, SomeTokens, Tokens
from workloads.loaded import Record

VERSION = 1

End = Literal["calls", "answer", "length", "aborted", "failed"]


class Header(Record):
    """What holds for a whole file. The first line of each file carries it. Files of one start have one `id`."""

    version: int
    id: str
    block_tokens: BlockTokens
    model: str
    policy: str
    started_at: str


class Line(Record):
    """One request. Times are in milliseconds, `timestamp` since the recording began; lengths are in tokens.

    `hash_ids` are the blocks of the prompt, the last one perhaps in part; `reply_ids` the full blocks behind them, up
    to the end of the reply. Requests that have the same text up to a block's end have the same id there. `session` is
    None where none is known; `thread` is the agent of it that asks and `parent` the one that began that agent, None for
    the main one. `tenant` has the session, if any does: two tenants share no blocks, even equal ones. `called` are the
    tools that the reply asked for. `lost` requests before this one are missing.
    """

    recording: Header | None = None
    timestamp: Milliseconds
    input_length: SomeTokens
    output_length: Tokens
    hash_ids: list[Count]
    reply_ids: list[Count] = Field(default=[])
    session: str | None = None
    thread: str | None = None
    parent: str | None = None
    tenant: str | None = None
    ttft_ms: Milliseconds | None = None
    latency_ms: Milliseconds
    cached_length: Tokens = 0
    called: list[str] = Field(default=[])
    end: End
    lost: Count = 0

    @property
    def ended_ms(self) -> float:
        """When the reply was complete."""
        return self.timestamp + self.latency_ms


def name_file(path: Path, rank: int) -> Path:
    """Return where the data-parallel engine `rank` records: engines side by side share no file."""
    return path.with_name(f"{path.stem}-rank{rank}{path.suffix}") if rank else path


def list_files(path: Path) -> list[Path]:
    """List FILE and those of further engines by their rank, the full ones of each in front of it, oldest first."""
    return [part for engine in _list_engines(path) for part in (*_find_full(engine), engine)]


def find_first(path: Path) -> Path:
    """Return FILE or, where the first engine had no request, the file of the next one that had any.

    An engine that was killed while its files moved on has left no FILE: its latest full file stands for it.
    """
    found = (part for engine in _list_engines(path) for part in (engine, *reversed(_find_full(engine))))
    return next((part for part in found if part.exists()), path)


def _list_engines(path: Path) -> list[Path]:
    name = re.compile(f"{re.escape(path.stem)}-rank([1-9][0-9]*){re.escape(path.suffix)}(\\.[1-9][0-9]*)?")
    found = path.parent.glob(f"{escape(path.stem)}-rank*")
    ranks = sorted({int(match[1]) for each in found if (match := name.fullmatch(each.name))})
    return [path, *(name_file(path, rank) for rank in ranks)]


def _find_full(path: Path) -> list[Path]:
    """Find the full files, oldest first: FILE.1 is the latest. A number is missing where an engine was killed."""
    name = re.compile(f"{re.escape(path.name)}\\.([1-9][0-9]*)")
    beside = filter(Path.is_file, path.parent.glob(f"{escape(path.name)}.*"))
    found = {int(match[1]): each for each in beside if (match := name.fullmatch(each.name))}
    return [found[number] for number in sorted(found, reverse=True)]
