"""A line of a recording: one request with its times and sizes, and the equality of its blocks, but no text.

docs/recording.md describes the fields. Its first four are those of a Mooncake trace.
"""

from __future__ import annotations

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
    None where none is known. `called` are the tools that the reply asked for. `lost` requests before this one are
    missing.
    """

    recording: Header | None = None
    timestamp: Milliseconds
    input_length: SomeTokens
    output_length: Tokens
    hash_ids: list[Count]
    reply_ids: list[Count] = Field(default=[])
    session: str | None = None
    ttft_ms: Milliseconds | None = None
    latency_ms: Milliseconds
    cached_length: Tokens = 0
    called: list[str] = Field(default=[])
    end: End
    lost: Count = 0
