"""Reads a recording: broken lines are told by number and left out, and what cannot be read at all is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agentcache.errors import InputError
from workloads.loaded import parse_record, read_lines
from workloads.recording.line import VERSION, Header, Line, find_first, list_files
from workloads.recording.spans import ASSUMPTION, read_traced

# Broken lines that a note names.
_NAMED = 3
# Times are rounded to microseconds.
_ROUNDING_MS = 0.01


@dataclass(frozen=True, slots=True)
class Recording:
    """`requests` in the order in which they came. `broken` lines were skipped: their places, with what is wrong.

    `lost` requests were never written. `assumption` is what the file does not tell, and was taken to be so. `left_out`
    says what else the file holds.
    """

    header: Header
    requests: tuple[Line, ...]
    broken: tuple[str, ...]
    lost: int
    assumption: str | None = None
    left_out: tuple[str, ...] = ()

    def describe_losses(self) -> Iterator[str]:
        """Say what is missing."""
        if self.broken:
            more = f"; and {len(self.broken) - _NAMED} more" if len(self.broken) > _NAMED else ""
            yield f"Broken lines that were skipped: {len(self.broken)} ({'; '.join(self.broken[:_NAMED])}{more})."
        if self.lost:
            yield f"Requests that are missing because the disk was too slow when they were recorded: {self.lost}."
        yield from self.left_out


def read_recording(path: Path) -> Recording:
    """Read FILE, the full files beside it, and the files of further engines, as far as they are of the same start.

    A file of OpenTelemetry's spans is read alone. Raises InputError, which names the file and the line, for one that is
    empty, of another version, or out of order.
    """
    broken: list[str] = []
    first = find_first(path)
    if not _is_recorded(first):
        header, traced, left_out = read_traced(first, broken)
        return Recording(header, tuple(traced), tuple(broken), 0, ASSUMPTION, tuple(left_out))
    header = _read_header(first)
    parts = _find_parts(path, header, broken)
    delays_ms = _find_delays(parts)
    lines = []
    for part, each in parts.items():
        later_ms = delays_ms[each.started_at]
        lines += [_shift(line, later_ms) for line in _read_part(part, header, broken)]
    if not lines:
        raise InputError(f"{path}: holds no whole line; the first is broken so: {broken[0]}")
    requests = sorted(lines, key=lambda line: line.timestamp)
    header = header.model_copy(update={"started_at": min(delays_ms, key=lambda start: delays_ms[start])})
    return Recording(header, tuple(requests), tuple(broken), sum(line.lost for line in lines))


def _find_parts(path: Path, header: Header, broken: list[str]) -> dict[Path, Header]:
    """Find the files of the same start, with their headers. Those without one are told in `broken`."""
    parts = {}
    for part in filter(Path.exists, list_files(path)):
        try:
            found = _read_header(part)
        except InputError as error:
            broken.append(str(error))
            continue
        if found.id == header.id:
            parts[part] = found
    return parts


def _find_delays(parts: Mapping[Path, Header]) -> dict[str, float]:
    """Find by how many milliseconds each engine, by its `started_at`, began after the first: times begin with it."""
    by_start = {header.started_at: path for path, header in parts.items()}
    if len(by_start) == 1:
        return dict.fromkeys(by_start, 0.0)
    began = {start: _read_start(start, path) for start, path in by_start.items()}
    first = min(began.values())
    return {start: (time - first) / timedelta(milliseconds=1) for start, time in began.items()}


def _read_start(start: str, path: Path) -> datetime:
    try:
        return datetime.fromisoformat(start).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InputError(
            f"{path}:1: recording.started_at: is {start[:40]!r}; engines are put on one clock by times such as "
            "2026-01-31T23:59:59+00:00"
        ) from None


def _shift(line: Line, later_ms: float) -> Line:
    return line.model_copy(update={"timestamp": line.timestamp + later_ms}) if later_ms else line


def _is_recorded(path: Path) -> bool:
    """Tell a recording, perhaps with a broken first line, from anything else, in which spans are looked for."""
    _, text = next(read_lines(path))
    try:
        return "recording" in json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return b'"recording"' in text[:200]


def _read_header(path: Path) -> Header:
    number, text = next(read_lines(path))
    place = f"{path}:{number}"
    try:
        first: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{place}: the first line, which says what the file is, is broken; mend or drop it") from None
    head = first.get("recording") if isinstance(first, dict) else None
    if not isinstance(head, dict):
        raise InputError(
            f"{place}: recording: is missing; `agentcache serve --record` writes it, and `python "
            "benchmarks/convert.py` makes a recording of traces of others"
        )
    if head.get("version") != VERSION:
        raise InputError(
            f"{place}: recording.version: is {head.get('version')!r:.40}, this agentcache reads {VERSION}; record again"
        )
    return parse_record(Header, json.dumps(head).encode(), f"{place}: recording")


def _read_part(path: Path, header: Header, broken: list[str]) -> Iterator[Line]:
    before_ms = 0.0
    for number, text in read_lines(path):
        place = f"{path}:{number}"
        try:
            line = parse_record(Line, text, place)
            _check_blocks(line, header.block_tokens, place)
        except InputError as error:
            broken.append(str(error))
            continue
        ended_ms = line.timestamp + line.latency_ms
        if ended_ms < before_ms - _ROUNDING_MS:
            raise InputError(
                f"{place}: timestamp + latency_ms: {ended_ms:g} is before the line above, {before_ms:g}; lines stand "
                "in the order in which requests ended, those of one start in one file"
            )
        before_ms = max(before_ms, ended_ms)
        yield line


def _check_blocks(line: Line, block_tokens: int, place: str) -> None:
    needed = -(-line.input_length // block_tokens)
    if len(line.hash_ids) != needed:
        raise InputError(
            f"{place}: hash_ids: {len(line.hash_ids)} blocks of {block_tokens} tokens for an input_length of "
            f"{line.input_length}; it needs {needed}"
        )
