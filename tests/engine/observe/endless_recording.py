"""Writes a recording of a given number of made-up requests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from workloads.recording.line import VERSION, Header
from workloads.recording.line_maker import LineMaker, RecordedRequest
from workloads.recording.writer import LineFile, LineWriter

FILES = 4
# Some hundred lines, most of which cross a border of the kernel's pages; they take about half a second.
MAX_BYTES = 2_000_000
_BLOCK_TOKENS = 512
_BLOCKS = 200


def record(path: Path, start: str, numbers: Iterable[int]) -> None:
    """Record requests whose replies have so many tokens, one a second, as the engine's start of this name."""
    lines = LineMaker(key=b"key", block_tokens=_BLOCK_TOKENS, tool_names=False, started_s=0.0)
    writer = LineWriter(LineFile(path, max_bytes=MAX_BYTES, files=FILES), lines, make_header(start))
    for number in numbers:
        writer.write(make_request(number))
    writer.close()


def make_header(start: str) -> Header:
    return Header(
        version=VERSION,
        id=start,
        block_tokens=_BLOCK_TOKENS,
        model="",
        policy="vllm",
        started_at="2026-11-26T12:00:00+00:00",
    )


def make_request(number: int) -> RecordedRequest:
    return RecordedRequest(
        arrived_s=number,
        first_token_s=number + 0.5,
        ended_s=number + 1.0,
        prompt_tokens=_BLOCKS * _BLOCK_TOKENS,
        output_tokens=number,
        cached_tokens=0,
        hashes=[b"%d" % block for block in range(_BLOCKS)],
        session="session",
        tools=[],
        end="answer",
        name=f"request {number}",
    )
