"""Mooncake traces: requests of a served model with their time, sizes and block hashes, but no text and no job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from agentcache.errors import InputError
from tool_runtime.agent.job import Context, Job, Turn
from tool_runtime.bounds import Count, Milliseconds, Tokens
from workloads.loaded import BlockScale, LoadedJobs, Record, check_enough, check_options, parse_record, read_lines

_BLOCK_TOKENS = 512
_RECORDED_NOTE = (
    f"Prompt and reply sizes and the equality of {_BLOCK_TOKENS}-token blocks are recorded, the text is not. The trace "
    "names no jobs, so each request is a job of one turn: conversations show only as shared blocks."
)


class _Request(Record):
    timestamp: Milliseconds
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[Count] = Field(min_length=1)


def load_requests(
    path: Path, *, jobs: int | None, rate: float | None, scale: float, max_context: int | None
) -> LoadedJobs:
    """Load the first `jobs` requests, all for None, each a job of one turn named after its line.

    They arrive as recorded, or `rate` a second with the recorded gaps in proportion. `max_context` leaves out requests
    with more tokens, after scaling, in prompt and reply together. Raises InputError with path:line for bad input.
    """
    check_options(jobs, scale)
    size = BlockScale.of(_BLOCK_TOKENS, scale)
    chosen: list[tuple[int, float, Context]] = []
    left_out, before_ms = 0, 0.0
    for line, text in read_lines(path):
        if len(chosen) == jobs:
            break
        place = f"{path}:{line}"
        request = parse_record(_Request, text, place)
        if request.timestamp < before_ms:
            raise InputError(
                f"{place}: timestamp: {request.timestamp:g} is before that of the line above; sort the file"
            )
        before_ms = request.timestamp
        context = _build_context(request, size, place)
        if max_context is not None and context.tokens + context.reply_tokens > max_context:
            left_out += 1
        else:
            chosen.append((line, before_ms / 1000, context))
    check_enough(jobs, len(chosen), path)
    arrivals = _pace([recorded_s for _, recorded_s, _ in chosen], rate)
    return LoadedJobs(
        jobs=[
            Job(f"request-{line}", (), turns=(Turn(context=context),), arrival_s=arrival_s)
            for (line, _, context), arrival_s in zip(chosen, arrivals, strict=True)
        ],
        notes=(_RECORDED_NOTE, *_describe_changes(size, rate, left_out, max_context)),
    )


def _build_context(request: _Request, size: BlockScale, place: str) -> Context:
    needed = max(1, -(-request.input_length // _BLOCK_TOKENS))
    if len(request.hash_ids) != needed:
        raise InputError(
            f"{place}: hash_ids: {len(request.hash_ids)} blocks of {_BLOCK_TOKENS} tokens for an input_length of "
            f"{request.input_length}; it needs {needed}"
        )
    return Context(
        blocks=tuple(request.hash_ids),
        block_tokens=size.block_tokens,
        tokens=size.prompt_tokens(request.input_length),
        reply_tokens=size.reply_tokens(request.output_length),
    )


def _pace(recorded_s: Sequence[float], rate: float | None) -> list[float]:
    """Pace the times from 0 on, stretched so that the mean gap is 1 / `rate`."""
    first, last = recorded_s[0], recorded_s[-1]
    stretch = 1.0
    if rate is not None and len(recorded_s) > 1:
        if not 0 < rate < float("inf"):
            raise InputError(f"--rate {rate:g}: give a number above 0, requests per second")
        if first == last:
            raise InputError(f"--rate {rate:g}: all {len(recorded_s)} requests have one timestamp: no gaps to scale")
        stretch = (len(recorded_s) - 1) / rate / (last - first)
    return [(time_s - first) * stretch for time_s in recorded_s]


def _describe_changes(size: BlockScale, rate: float | None, left_out: int, max_context: int | None) -> list[str]:
    notes = []
    if rate is not None:
        notes.append(f"The recorded gaps between requests are scaled to {rate:g} requests per second.")
    if size.block_tokens != size.recorded_tokens:
        notes.append(f"Sizes are scaled with the block, from {size.recorded_tokens} to {size.block_tokens} tokens.")
    if left_out:
        notes.append(f"{left_out} requests of more than {max_context} tokens are left out.")
    return notes
