"""One recorded agent session as its file holds it: sizes, block hashes and times of every request, but no text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from agentcache.errors import InputError
from tool_runtime.bounds import BlockTokens, Count, Milliseconds, Seconds, Tokens
from workloads.loaded import Record, parse_record, read_whole, refuse_compressed


class Request(Record):
    """`t` is when it was sent, in seconds from the start of its agent; `api_time` is how long the reply took.

    `hash_ids` are the full blocks of the prompt. `stop` is empty where it was not recorded.
    """

    type: Literal["n", "s"]
    t: Seconds
    prompt_tokens: Tokens = Field(alias="in")
    reply_tokens: Tokens = Field(alias="out")
    hash_ids: list[Count]
    input_types: list[str]
    stop: str
    api_time: Seconds | None = None
    think_time: Seconds | None = None
    # Not used; named because a field that is not known is an error.
    ttft: Any = None
    model: Any = None
    output_types: Any = None


class SubAgent(Record):
    """An agent that the session started. With a duration `t` is its end, without one (not waited for) its start."""

    type: Literal["subagent"]
    t: Seconds
    duration_ms: Milliseconds | None = None
    tool_tokens: Tokens
    system_tokens: Tokens
    requests: list[Request]
    agent_id: Any = None
    subagent_type: Any = None
    status: Any = None
    models: Any = None
    total_tokens: Any = None
    tool_use_count: Any = None


class Trace(Record):
    """A session. Its tool definitions and its system prompt are the first tokens of each of its prompts."""

    id: str
    block_size: BlockTokens
    hash_id_scope: Literal["local"] = "local"
    tool_tokens: Tokens
    system_tokens: Tokens
    requests: list[Annotated[Request | SubAgent, Field(discriminator="type")]] = Field(min_length=1)
    models: Any = None
    totals: Any = None


def find_traces(path: Path) -> list[Path]:
    """Find the trace files of a folder by name, or the one file that `path` is. Raises InputError if there is none."""
    refuse_compressed(path)
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("trace_*.json"))
    if not found:
        raise InputError(f"{path}: holds no trace_*.json")
    return found


def read_trace(path: Path) -> Trace:
    """Read a trace. Raises InputError that names the file, the request's index and the field."""
    trace = parse_record(Trace, read_whole(path), str(path), tags=("n", "s", "subagent"))
    for index, entry in enumerate(trace.requests):
        place = f"{path}: requests[{index}]"
        if isinstance(entry, Request):
            _check_blocks(entry, trace.block_size, place)
        else:
            for inner, request in enumerate(entry.requests):
                _check_blocks(request, trace.block_size, f"{place}.requests[{inner}]")
    return trace


def _check_blocks(request: Request, block_tokens: int, place: str) -> None:
    full = request.prompt_tokens // block_tokens
    if len(request.hash_ids) not in (full, -(-request.prompt_tokens // block_tokens)):
        raise InputError(
            f"{place}.hash_ids: {len(request.hash_ids)} blocks of {block_tokens} tokens for a prompt of "
            f"{request.prompt_tokens}; it needs {full}"
        )
