"""Reads one recorded agent session: sizes, hashes and times of its requests, but no text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from agentcache.errors import InputError
from converters.left_out import ForeignRecord, LeftOut
from tool_runtime.bounds import BlockTokens, Count, Milliseconds, Seconds, Tokens
from workloads.loaded import read_lines, read_whole, refuse_compressed

_MS = 1000


class Request(ForeignRecord):
    """`t` is when it was sent, in seconds from the start of its agent or session; `api_time` is how long it took.

    `hash_ids` are the full blocks of the prompt. `stop` is empty where it was not recorded.
    """

    type: Literal["n", "s"]
    t: Seconds
    prompt_tokens: Tokens = Field(alias="in")
    reply_tokens: Tokens = Field(alias="out")
    hash_ids: list[Count]
    input_types: list[str] = Field(default=[])
    stop: str = ""
    api_time: Seconds | None = None
    think_time: Seconds | None = None


class SubAgent(ForeignRecord):
    """An agent that the session started. With a duration `t` is its end, without one (not waited for) its start.

    Where its requests are on the session's clock, `t` is its start anyway.
    """

    type: Literal["subagent"]
    t: Seconds
    duration_ms: Milliseconds | None = None
    tool_tokens: Tokens = 0
    system_tokens: Tokens = 0
    requests: list[Request]

    @property
    def start_s(self) -> float:
        """When it began, on the session's clock, on which its requests may be, too."""
        return self.t - (self.duration_ms or 0) / _MS


class Trace(ForeignRecord):
    """A session. Its tool definitions and its system prompt are the first tokens of each of its prompts."""

    id: str
    block_size: BlockTokens
    hash_id_scope: Literal["local"] = "local"
    tool_tokens: Tokens = 0
    system_tokens: Tokens = 0
    requests: list[Annotated[Request | SubAgent, Field(discriminator="type")]] = Field(min_length=1)


def find_traces(path: Path) -> list[Path]:
    """Find the trace files of a folder by name, or the one file that `path` is. Raises InputError if there is none."""
    refuse_compressed(path)
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("trace_*.json"))
    if not found:
        raise InputError(f"{path}: holds no trace_*.json")
    return found


def read_traces(path: Path, left_out: LeftOut) -> Iterator[tuple[str, Trace]]:
    """Read the sessions of a file, one, or one a line, each with a name.

    Raises InputError that names the file, the line, the request's index and the field.
    """
    lines = read_lines(path)
    begin = [*islice(lines, 2)]
    if len(begin) == 1 or not _is_whole(begin[0][1]):
        yield path.stem, _read_trace(read_whole(path), str(path), left_out)
        return
    for number, text in chain(begin, lines):
        yield f"{path.stem}-{number}", _read_trace(text, f"{path}:{number}", left_out)


def _is_whole(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _read_trace(text: bytes, place: str, left_out: LeftOut) -> Trace:
    trace = left_out.parse(Trace, text, place, tags=("n", "s", "subagent"))
    for index, entry in enumerate(trace.requests):
        at = f"{place}: requests[{index}]"
        if isinstance(entry, Request):
            _check_blocks(entry, trace.block_size, at)
        else:
            for inner, request in enumerate(entry.requests):
                _check_blocks(request, trace.block_size, f"{at}.requests[{inner}]")
    return trace


def _check_blocks(request: Request, block_tokens: int, place: str) -> None:
    full = request.prompt_tokens // block_tokens
    if len(request.hash_ids) not in (full, -(-request.prompt_tokens // block_tokens)):
        raise InputError(
            f"{place}.hash_ids: {len(request.hash_ids)} blocks of {block_tokens} tokens for a prompt of "
            f"{request.prompt_tokens}; it needs {full}"
        )
