"""What a recording keeps of a request: nothing from which a text or a name could be found again.

Ids are keyed hashes. The key is made of what is drawn at the start, never written, and gone with the processes: who
knows a text cannot look for it either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from workloads.recording.line import End, Header, Line

# JSON's numbers are exact up to 2**53. Two of a million blocks have one id in one of ten thousand recordings.
_ID_BITS = 53


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """A request that is over, in seconds of the engine's clock and tokens.

    `hashes` are vLLM's, of every so many tokens of prompt and reply, as far as there are full blocks.
    """

    arrived_s: float
    first_token_s: float | None
    ended_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    hashes: Sequence[bytes]
    session: str | None
    tools: Sequence[str]
    end: End
    # Makes the id of a block that is not full, which nothing else has.
    name: str


class LineMaker:
    """Makes lines of one recording, with times since `started_s`. Equal values have equal ids under one `key`."""

    def __init__(self, *, key: bytes, block_tokens: int, tool_names: bool, started_s: float) -> None:
        self._block_tokens = block_tokens
        self._tool_names = tool_names
        self._started_s = started_s
        self._key = key

    def make(self, request: EndedRequest, lost: int, header: Header | None) -> bytes:
        """Make the line, with its end. `lost` requests before it are missing; `header` begins a file."""
        blocks = -(-request.prompt_tokens // self._block_tokens)
        ids = [self._number(b"block", block_hash) for block_hash in request.hashes]
        if len(ids) < blocks:
            ids.append(self._number(b"rest", request.name.encode()))
        line = Line.model_construct(
            recording=header,
            timestamp=_milliseconds(request.arrived_s - self._started_s),
            input_length=request.prompt_tokens,
            output_length=request.output_tokens,
            hash_ids=ids[:blocks],
            reply_ids=ids[blocks:],
            session=None if request.session is None else self._salt(b"session", request.session),
            ttft_ms=None if request.first_token_s is None else _milliseconds(request.first_token_s - request.arrived_s),
            latency_ms=_milliseconds(request.ended_s - request.arrived_s),
            cached_length=request.cached_tokens,
            called=[name if self._tool_names else self._salt(b"tool", name) for name in request.tools],
            end=request.end,
            lost=lost,
        )
        return line.model_dump_json(exclude_defaults=True).encode() + b"\n"

    def _number(self, kind: bytes, value: bytes) -> int:
        digest = hashlib.blake2b(value, digest_size=8, key=self._key, person=kind).digest()
        return int.from_bytes(digest, "big") >> (64 - _ID_BITS)

    def _salt(self, kind: bytes, name: str) -> str:
        value = name.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(value, digest_size=8, key=self._key, person=kind).hexdigest()


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
