"""LMCache's traces of agents: requests with their text and time.

A folder, or one of its files, of github.com/LMCache/lmcache-agent-trace: JSON lines of `timestamp` in microseconds,
the prompt's text `input`, the reply's text `output`, and `session_id`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice, zip_longest
from pathlib import Path

from pydantic import Field

from agentcache.errors import InputError
from converters.left_out import ForeignRecord, LeftOut
from converters.recorded import Request, Session, draw_recordings, write_sessions
from tool_runtime.bounds import MAX_S
from workloads.filler import Encode
from workloads.loaded import read_lines, refuse_compressed

_MICROSECONDS = 1e-6
# The trace does not name the tools.
_CALLED = ("tool",)
# Tokens that nothing else has: of replies that the next prompt does not go on with.
_unknown = count(-1, -1)


class _Request(ForeignRecord):
    timestamp: int = Field(ge=0, le=MAX_S * 10**6)
    prompt: str = Field(alias="input")
    reply: str = Field(alias="output")
    session_id: str = Field(min_length=1)


def convert(
    path: Path,
    out: Path,
    *,
    jobs: int | None,
    arrivals: Callable[[int], Sequence[float]],
    max_gap_s: float,
    encode: Encode,
    seed: int,
    left_out: LeftOut,
) -> None:
    """Convert `jobs` sessions, all for None, drawn by the seed from a file or from all *.jsonl below a folder.

    `arrivals` gives so many times in seconds. The time from a request to the next one, in which the reply was written
    too, counts as a wait for a tool, and is cut to `max_gap_s`. A session's agents take turns, in the order of the
    timestamps. Requests without text (a picture) are left out. Raises InputError with path:line and the field.
    """
    if not max_gap_s >= 0:
        raise InputError(f"--max-gap {max_gap_s:g}: give seconds, 0 or more")
    drawn = draw_recordings(_read_sessions(path, left_out), jobs, path, seed)
    sessions = (
        Session(requests[0].session_id, arrival_s, [*_list_requests(requests, max_gap_s, encode)])
        for requests, arrival_s in zip(drawn, arrivals(len(drawn)), strict=True)
    )
    write_sessions(out, sessions, kind="lmcache")


def _read_sessions(path: Path, left_out: LeftOut) -> list[list[_Request]]:
    """Read the requests of each session in the order of time."""
    sessions: dict[str, list[_Request]] = {}
    for file in _find_files(path):
        for line, text in read_lines(file):
            request = left_out.parse(_Request, text, f"{file}:{line}")
            if request.prompt:
                sessions.setdefault(request.session_id, []).append(request)
    return [sorted(requests, key=lambda request: request.timestamp) for requests in sessions.values()]


def _find_files(path: Path) -> list[Path]:
    refuse_compressed(path)
    if not path.is_dir():
        return [path]
    found = sorted(path.rglob("*.jsonl"))
    if not found:
        raise InputError(f"{path}: holds no *.jsonl")
    return found


def _list_requests(requests: Sequence[_Request], max_gap_s: float, encode: Encode) -> Iterator[Request]:
    """Take what follows a prompt in the next one for its reply, of which the text may have been written otherwise.

    Where only a call was written, the trace has an empty reply.
    """
    prompts = [tuple(encode(request.prompt)) for request in requests]
    for request, prompt, later, after in zip_longest(requests, prompts, prompts[1:], requests[1:]):
        tokens = max(1, len(encode(request.reply)) if request.reply else 0)
        told = later[len(prompt) : len(prompt) + tokens] if later and later[: len(prompt)] == prompt else ()
        reply = [*told, *islice(_unknown, tokens - len(told))]
        wait_s = min((after.timestamp - request.timestamp) * _MICROSECONDS, max_gap_s) if after else 0.0
        yield Request(prompt, reply, _CALLED if after else (), wait_s)
