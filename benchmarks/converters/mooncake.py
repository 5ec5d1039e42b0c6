"""Mooncake's traces: requests of a served model with their time, sizes and block hashes, but no text and no job.

JSON lines as in github.com/kvcache-ai/Mooncake, `FAST25-release/traces`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from pydantic import Field

from agentcache.errors import InputError
from converters.left_out import ForeignRecord, LeftOut
from converters.recorded import check_options, write_lines
from tool_runtime.bounds import Count, Milliseconds, Tokens
from workloads.loaded import check_enough, read_lines
from workloads.recording.line import Line

_BLOCK_TOKENS = 512


class _Request(ForeignRecord):
    timestamp: Milliseconds
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[Count] = Field(min_length=1)


def convert(
    path: Path, out: Path, *, jobs: int | None, rate: float | None, max_context: int | None, left_out: LeftOut
) -> None:
    """Convert the first `jobs` requests, all for None, each a session of its own named after its line.

    They come as recorded, or `rate` a second with the recorded gaps in proportion. `max_context` leaves out requests
    with more tokens in prompt and reply together. Raises InputError with path:line for bad input.
    """
    check_options(jobs, 1.0)
    most = max_context or math.inf
    fitting = (line for line in _read_requests(path, left_out) if line.input_length + line.output_length <= most)
    chosen = list(islice(fitting, jobs))
    check_enough(jobs, len(chosen), path)
    times = _pace([line.timestamp for line in chosen], rate)
    paced = [line.model_copy(update={"timestamp": time}) for line, time in zip(chosen, times, strict=True)]
    write_lines(out, paced, kind="mooncake", block_tokens=_BLOCK_TOKENS)


def _read_requests(path: Path, left_out: LeftOut) -> Iterator[Line]:
    before_ms = 0.0
    for number, text in read_lines(path):
        place = f"{path}:{number}"
        request = left_out.parse(_Request, text, place)
        if request.timestamp < before_ms:
            raise InputError(
                f"{place}: timestamp: {request.timestamp:g} is before that of the line above; sort the file"
            )
        before_ms = request.timestamp
        needed = max(1, -(-request.input_length // _BLOCK_TOKENS))
        if len(request.hash_ids) != needed:
            raise InputError(
                f"{place}: hash_ids: {len(request.hash_ids)} blocks of {_BLOCK_TOKENS} tokens for an input_length of "
                f"{request.input_length}; it needs {needed}"
            )
        yield Line(
            timestamp=request.timestamp,
            input_length=max(1, request.input_length),
            output_length=max(1, request.output_length),
            hash_ids=request.hash_ids,
            session=f"request-{number}",
            latency_ms=0.0,
            end="answer",
        )


def _pace(recorded_ms: Sequence[float], rate: float | None) -> list[float]:
    """Pace the times from 0 on, stretched so that the mean gap is 1 / `rate` seconds."""
    first, last = recorded_ms[0], recorded_ms[-1]
    stretch = 1.0
    if rate is not None and len(recorded_ms) > 1:
        if not 0 < rate < float("inf"):
            raise InputError(f"--rate {rate:g}: give a number above 0, requests per second")
        if first == last:
            raise InputError(f"--rate {rate:g}: all {len(recorded_ms)} requests have one timestamp: no gaps to scale")
        stretch = 1000 * (len(recorded_ms) - 1) / rate / (last - first)
    return [(time_ms - first) * stretch for time_ms in recorded_ms]
