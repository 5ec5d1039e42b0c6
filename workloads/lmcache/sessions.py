"""LMCache's agent traces as jobs: a session is a job, and a request one of its turns.

A folder, or one of its files, of github.com/LMCache/lmcache-agent-trace: JSON lines of `timestamp` in microseconds,
the prompt's text `input`, the reply's text `output`, and `session_id`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from pydantic import Field

from agentcache.errors import InputError
from tool_runtime.agent.job import Context, Job, ToolCall, ToolResult, Turn
from tool_runtime.bounds import Microseconds
from workloads.filler import Encode
from workloads.loaded import LoadedJobs, Record, draw_recordings, parse_record, read_lines, refuse_compressed

_MICROSECONDS = 1e-6
# The recording does not name the tools.
_CALL = ToolCall("tool", "{}")
_RECORDED_NOTE = (
    "{sessions} agent sessions, {requests} requests: prompts, replies and times are recorded. A wait is the time from "
    "a request to the next one, in which the reply was written too, for that was not recorded apart; {capped} are "
    "longer than {max_gap_s:g} s and are cut to it. All waits count as waits for a tool."
)


class _Request(Record):
    timestamp: Microseconds
    prompt: str = Field(alias="input")
    reply: str = Field(alias="output")
    session_id: str = Field(min_length=1)


def load_sessions(
    path: Path,
    *,
    jobs: int | None,
    arrivals: Callable[[int], Sequence[float]],
    max_gap_s: float,
    encode: Encode,
    seed: int,
) -> LoadedJobs:
    """Load `jobs` sessions, all for None, drawn by the seed from a file or from all *.jsonl below a folder.

    A prompt is the recorded text in tokens of `encode`: what two prompts have in common they have in common here.
    `arrivals` gives so many times in seconds. The wait between two requests is the time between their timestamps, cut
    to `max_gap_s`. A session's agents take turns, in the order of the timestamps. Requests without text (a picture)
    are left out. Raises InputError with path:line and the field.
    """
    if not max_gap_s >= 0:
        raise InputError(f"--max-gap {max_gap_s:g}: give seconds, 0 or more")
    sessions, left_out = _read_sessions(path)
    drawn = draw_recordings(sessions, jobs, path, seed)
    times = arrivals(len(drawn))
    built = [
        Job(requests[0].session_id, (), turns=tuple(_build_turns(requests, max_gap_s, encode)), arrival_s=arrival_s)
        for requests, arrival_s in zip(drawn, times, strict=True)
    ]
    note = _RECORDED_NOTE.format(
        sessions=len(drawn),
        requests=sum(map(len, drawn)),
        capped=sum(gap > max_gap_s for requests in drawn for gap in _measure_gaps(requests)),
        max_gap_s=max_gap_s,
    )
    return LoadedJobs(built, (note, f"{left_out} requests without text are left out.") if left_out else (note,))


def _read_sessions(path: Path) -> tuple[list[list[_Request]], int]:
    """Read the requests of each session in the order of time, and how many had no text."""
    sessions: dict[str, list[_Request]] = {}
    left_out = 0
    for file in _find_files(path):
        for line, text in read_lines(file):
            request = parse_record(_Request, text, f"{file}:{line}")
            if request.prompt:
                sessions.setdefault(request.session_id, []).append(request)
            else:
                left_out += 1
    return [sorted(requests, key=lambda request: request.timestamp) for requests in sessions.values()], left_out


def _find_files(path: Path) -> list[Path]:
    refuse_compressed(path)
    if not path.is_dir():
        return [path]
    found = sorted(path.rglob("*.jsonl"))
    if not found:
        raise InputError(f"{path}: holds no *.jsonl")
    return found


def _measure_gaps(requests: Sequence[_Request]) -> list[float]:
    return [(after.timestamp - before.timestamp) * _MICROSECONDS for before, after in pairwise(requests)]


def _build_turns(requests: Sequence[_Request], max_gap_s: float, encode: Encode) -> Iterator[Turn]:
    for request, gap_s in zip(requests, _measure_gaps(requests), strict=False):
        result = ToolResult("", min(gap_s, max_gap_s))
        yield Turn(tool_calls=(_CALL,), results=(result,), context=_build_context(request, encode))
    yield Turn(context=_build_context(requests[-1], encode))


def _build_context(request: _Request, encode: Encode) -> Context:
    """Take every token for a block of its own. Where only a call was written, the recording has an empty reply."""
    tokens = tuple(encode(request.prompt))
    return Context(
        blocks=tokens,
        block_tokens=1,
        tokens=len(tokens),
        reply_tokens=max(1, len(encode(request.reply)) if request.reply else 0),
    )
