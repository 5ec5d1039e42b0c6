"""Makes the line that a recording keeps of a request, from which no text or name can be found again.

Ids are keyed hashes. The key is never written: who knows a text cannot look for it either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2b

from workloads.recording.line import End, Header, Line

# JSON's numbers are exact up to 2**53. Two of a million blocks have one id in one of ten thousand recordings.
_ID_BITS = 53
# Ids of each kind that are kept: a prompt begins with the blocks of the one before it. About 5 MB.
_KEPT_IDS = 2**14


@dataclass(slots=True)
class RecordedRequest:
    """A request, in seconds of the engine's clock and tokens, filled until it is over.

    `name` makes the id of a block that is not full, which nothing else has. `hashes` are vLLM's, of every so many
    tokens of prompt and reply, as far as there are full blocks. `cached_tokens` is None until it runs.
    """

    name: str
    arrived_s: float
    first_token_s: float | None = None
    ended_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    hashes: Sequence[bytes] = ()
    session: str | None = None
    thread: str | None = None
    parent: str | None = None
    tenant: str | None = None
    tools: Sequence[str] = ()
    end: End = "failed"


class LineMaker:
    """Makes lines of one recording, with times since `started_s`. Equal values have equal ids under one `key`."""

    def __init__(self, *, key: bytes, block_tokens: int, tool_names: bool, started_s: float) -> None:
        self._block_tokens = block_tokens
        self._started_s = started_s
        self._key = key
        self._block_id = lru_cache(_KEPT_IDS)(partial(self._number, b"block"))
        self._session_id = lru_cache(_KEPT_IDS)(partial(self._salt, b"session"))
        self._thread_id = lru_cache(_KEPT_IDS)(partial(self._salt, b"thread"))
        self._tenant_id = lru_cache(_KEPT_IDS)(partial(self._salt, b"tenant"))
        self._tool_id = lru_cache(_KEPT_IDS)(str if tool_names else partial(self._salt, b"tool"))

    def make(self, request: RecordedRequest, lost: int, header: Header | None) -> bytes:
        """Make the line, with its end. `lost` requests before it are missing; `header` begins a file."""
        blocks = -(-request.prompt_tokens // self._block_tokens)
        ids = list(map(self._block_id, request.hashes))
        if len(ids) < blocks:
            ids.append(self._number(b"rest", request.name.encode()))
        session, thread, first_s, arrived_s = request.session, request.thread, request.first_token_s, request.arrived_s
        # To check it takes as long again.
        line = Line.model_construct(
            recording=header,
            timestamp=_milliseconds(arrived_s - self._started_s),
            input_length=request.prompt_tokens,
            output_length=request.output_tokens,
            hash_ids=ids[:blocks],
            reply_ids=ids[blocks:],
            session=None if session is None else self._session_id(session),
            thread=None if thread is None else self._thread_id(thread),
            parent=None if request.parent is None else self._thread_id(request.parent),
            tenant=None if request.tenant is None else self._tenant_id(request.tenant),
            ttft_ms=None if first_s is None else _milliseconds(first_s - arrived_s),
            latency_ms=_milliseconds(request.ended_s - arrived_s),
            cached_length=request.cached_tokens or 0,
            called=list(map(self._tool_id, request.tools)),
            end=request.end,
            lost=lost,
        )
        return line.model_dump_json(exclude_defaults=True).encode() + b"\n"

    def _number(self, kind: bytes, value: bytes) -> int:
        return int.from_bytes(self._digest(kind, value)) >> (64 - _ID_BITS)

    def _salt(self, kind: bytes, name: str) -> str:
        return self._digest(kind, name.encode("utf-8", "surrogatepass")).hex()

    def _digest(self, kind: bytes, value: bytes) -> bytes:
        return blake2b(value, digest_size=8, key=self._key, person=kind).digest()


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
