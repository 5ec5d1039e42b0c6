"""Recordings of jobs without text, small enough to be followed by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from recorded_lines import HEADER, make_line, write_recording

BLOCK = 64
# Behind all blocks that a session is given.
_TAILS = 5000


def make_session(number: int, *prompts: tuple[int, ...], output: int = 20, wait_s: float = 0.1) -> list[dict[str, Any]]:
    """A session from 0 s on, of prompts with these full blocks, its own, and 9 tokens behind; it waits for a tool."""
    first = 10_000 * number
    lines = []
    for turn, (blocks, following) in enumerate(pairwise([*prompts, ()])):
        goes_on = following[: len(blocks)] == blocks and len(following) > len(blocks)
        tail = following[len(blocks)] if goes_on else _TAILS + turn
        line = make_line(
            1000 * wait_s * turn,
            len(blocks) * BLOCK + 9,
            output,
            [first + block for block in (*blocks, tail)],
            session=f"trace_{number:04}",
            latency_ms=0,
        )
        lines.append(line | ({"called": ["tool"], "end": "calls"} if following else {}))
    return lines


def write_sessions(path: Path, sessions: Iterable[list[dict[str, Any]]]) -> Path:
    """Write sessions of `make_session` side by side."""
    lines = sorted((line for session in sessions for line in session), key=lambda line: line["timestamp"])
    return write_recording(path, *lines, header={**HEADER, "block_tokens": BLOCK})


def make_short_sessions(path: Path, turns: Sequence[int], wait_s: float = 0.01) -> Path:
    """A recording of sessions with so many turns each, replies of three tokens, and next to no wait."""
    prompts = [[tuple(range(1, 3 + turn)) for turn in range(count)] for count in turns]
    return write_sessions(path, (make_session(n, *each, output=3, wait_s=wait_s) for n, each in enumerate(prompts)))


def make_requests(path: Path, *prompts: tuple[int, ...]) -> Path:
    """A recording of requests, each of a session of its own, one a second, in whole blocks of 10 tokens."""
    lines = [
        make_line(1000 * number, 10 * len(blocks), 7, list(blocks), session=f"request-{number + 1}")
        for number, blocks in enumerate(prompts)
    ]
    return write_recording(path, *lines)
