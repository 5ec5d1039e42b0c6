"""Reads a recording: broken lines are told by number and left out, and what cannot be read at all is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from agentcache.errors import InputError
from workloads.loaded import parse_record, read_lines
from workloads.recording.line import VERSION, Header, Line
from workloads.recording.span_lines import ASSUMPTION, read_traced
from workloads.recording.spans import TOP

# Broken lines that a note names.
_NAMED = 3
# Times are rounded to microseconds.
_ROUNDING_MS = 0.01


@dataclass(frozen=True, slots=True)
class Recording:
    """`requests` in the order in which they came. `broken` lines were skipped: their places, with what is wrong.

    `lost` requests were never written. `assumption` is what the file does not tell, and was taken to be so.
    """

    header: Header
    requests: tuple[Line, ...]
    broken: tuple[str, ...]
    lost: int
    assumption: str | None = None

    def describe_losses(self) -> Iterator[str]:
        """Say what is missing."""
        if self.broken:
            more = f"; and {len(self.broken) - _NAMED} more" if len(self.broken) > _NAMED else ""
            yield f"Broken lines that were skipped: {len(self.broken)} ({'; '.join(self.broken[:_NAMED])}{more})."
        if self.lost:
            yield f"Requests that are missing because the disk was too slow when they were recorded: {self.lost}."


def read_recording(path: Path) -> Recording:
    """Read FILE and the full files beside it, FILE.1 the latest of them, as far as they are of the same start.

    A file of OpenTelemetry's spans is read alone. Raises InputError, which names the file and the line, for one that is
    empty, of another version, or out of order.
    """
    broken: list[str] = []
    if _has_spans(path):
        header, traced = read_traced(path, broken)
        return Recording(header, tuple(traced), tuple(broken), 0, ASSUMPTION)
    header = _read_header(path)
    parts = [path, *(part for part in _find_full(path) if _is_of(part, header))]
    lines = [line for part in reversed(parts) for line in _read_part(part, header, broken)]
    if not lines:
        raise InputError(f"{path}: holds no whole line; the first is broken so: {broken[0]}")
    requests = sorted(lines, key=lambda line: line.timestamp)
    return Recording(header, tuple(requests), tuple(broken), sum(line.lost for line in lines))


def _has_spans(path: Path) -> bool:
    """Tell whether the file is of spans, by its first line, perhaps broken."""
    _, text = next(read_lines(path))
    return text.lstrip().startswith(b"{") and f'"{TOP}"'.encode() in text[:200]


def _find_full(path: Path) -> Iterator[Path]:
    numbered = (path.with_name(f"{path.name}.{number}") for number in count(1))
    return takewhile(Path.is_file, numbered)


def _is_of(part: Path, header: Header) -> bool:
    try:
        return _read_header(part).id == header.id
    except InputError:
        return False


def _read_header(path: Path) -> Header:
    number, text = next(read_lines(path))
    place = f"{path}:{number}"
    try:
        first: Any = json.loads(text)
    except ValueError:
        raise InputError(f"{place}: the first line, which says what the file is, is broken; mend or drop it") from None
    head = first.get("recording") if isinstance(first, dict) else None
    if not isinstance(head, dict):
        raise InputError(
            f"{place}: recording: is missing; `agentcache serve --record` writes it (a Mooncake trace: mooncake:PATH)"
        )
    if head.get("version") != VERSION:
        raise InputError(
            f"{place}: recording.version: is {head.get('version')}, this agentcache reads {VERSION}; record again"
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
