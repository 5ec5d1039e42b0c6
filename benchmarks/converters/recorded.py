"""Writes requests as a recording (docs/recording.md), whose blocks are equal where all text up to their end is.

It also draws the sessions that are written, where not all are wanted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TypeVar

import numpy as np

from agentcache.errors import InputError
from workloads.recording.line import VERSION, Header, Line

# vLLM's, and so what a cache can tell apart.
BLOCK_TOKENS = 16


_RecordingT = TypeVar("_RecordingT")


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and its reply as token ids, the tools that the reply called, and the seconds to the next request."""

    prompt: Sequence[int]
    reply: Sequence[int]
    called: Sequence[str] = ()
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Session:
    """Requests one after the other, the first of which comes at `arrival_s`."""

    name: str
    arrival_s: float
    requests: Sequence[Request]
    tenant: str | None = None


def check_options(jobs: int | None, scale: float) -> None:
    """Raise InputError for what no loader can do."""
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs {jobs}: give at least 1")
    if not (math.isfinite(scale) and scale > 0):
        raise InputError(f"--scale {scale:g}: give a number above 0")


def write_sessions(path: Path, sessions: Iterable[Session], *, kind: str) -> None:
    """Write sessions of token ids."""
    blocks = _Blocks()
    write_lines(path, [line for each in sessions for line in _list_lines(each, blocks)], kind=kind)


def write_lines(path: Path, lines: Sequence[Line], *, kind: str, block_tokens: int = BLOCK_TOKENS) -> None:
    """Write requests in the order in which they ended; where no time of a reply is known, each ends as it comes."""
    header = Header(
        version=VERSION,
        id=kind,
        block_tokens=block_tokens,
        model="not known",
        policy="not known",
        started_at="1970-01-01T00:00:00+00:00",
    )
    first, *others = sorted(lines, key=lambda line: line.ended_ms)
    with path.open("w", encoding="utf-8") as file:
        for line in (first.model_copy(update={"recording": header}), *others):
            file.write(json.dumps(line.model_dump(exclude_defaults=True)) + "\n")


class _Blocks:
    """Numbers blocks: the same number for the same tokens behind the same block."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}
        self._next = count(1)

    def number(self, tokens: Sequence[int]) -> list[int]:
        """Number the full blocks, and what is left over by a number of its own."""
        numbers: list[int] = []
        before = 0
        for start in range(0, len(tokens), BLOCK_TOKENS):
            block = (before, *tokens[start : start + BLOCK_TOKENS])
            if len(block) <= BLOCK_TOKENS:
                before = next(self._next)
            elif (known := self._numbers.get(block)) is not None:
                before = known
            else:
                before = self._numbers[block] = next(self._next)
            numbers.append(before)
        return numbers


def _list_lines(session: Session, blocks: _Blocks) -> Iterator[Line]:
    came_s = session.arrival_s
    for request in session.requests:
        tokens = len(request.prompt)
        of_prompt = -(-tokens // BLOCK_TOKENS)
        ids = blocks.number([*request.prompt, *request.reply])
        yield Line(
            timestamp=1000 * came_s,
            input_length=tokens,
            output_length=len(request.reply),
            hash_ids=ids[:of_prompt],
            reply_ids=ids[of_prompt : (tokens + len(request.reply)) // BLOCK_TOKENS],
            session=session.name,
            tenant=session.tenant,
            latency_ms=0.0,
            called=list(request.called),
            end="calls" if request.called else "answer",
        )
        came_s += request.wait_s


def draw_recordings(recordings: Sequence[_RecordingT], jobs: int | None, path: Path, seed: int) -> list[_RecordingT]:
    """Draw `jobs` of a file's recordings, each at most once; all for None, in an order that the seed gives.

    Raises InputError if there are fewer. The first n are the same for every `jobs` above n.
    """
    check_options(jobs, 1.0)
    if not recordings:
        raise InputError(f"{path}: holds no entries")
    if jobs is not None and jobs > len(recordings):
        raise InputError(f"--jobs {jobs}: {path} has {len(recordings)} recordings; give 1 to {len(recordings)}")
    order = np.random.default_rng(seed).permutation(len(recordings))
    return [recordings[place] for place in order[:jobs]]
