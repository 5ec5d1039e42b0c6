"""Traces of coding agents: sizes, block hashes and times of each session's requests, but no text.

A folder of trace_*.json of github.com/callanjfox/kv-cache-tester, one of these files, or, as data sets of such traces
are published, a file of one session a line. Block ids mean something within one session only; `agent_blocks` says
what sessions are taken to share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from agentcache.errors import InputError
from converters.agent_blocks import BlockNumbers, Thread
from converters.agent_trace_file import (
    Step,
    SubAgent,
    Trace,
    Wait,
    find_traces,
    measure_waits,
    order_steps,
    read_traces,
)
from converters.left_out import LeftOut
from converters.recorded import check_options, write_lines
from workloads.loaded import check_enough
from workloads.recording.line import Line

# The trace does not name the tools.
_CALLED = ["tool"]


@dataclass(frozen=True, slots=True)
class BlockScale:
    """Sizes in tokens after scaling, such that a prompt keeps its number of blocks: both sizes change by one ratio."""

    recorded_tokens: int
    block_tokens: int

    @classmethod
    def of(cls, recorded_tokens: int, scale: float) -> BlockScale:
        """Make the scale for blocks of `recorded_tokens`."""
        return cls(recorded_tokens, max(1, round(recorded_tokens * scale)))

    def prompt_tokens(self, recorded: int) -> int:
        """Scale a prompt's tokens, upwards."""
        # Upwards, so that a block that holds a token goes on holding one.
        return max(1, -(-recorded * self.block_tokens // self.recorded_tokens))

    def reply_tokens(self, recorded: int) -> int:
        """Scale a reply's tokens, to the nearest number, at least 1."""
        return max(1, round(recorded * self.block_tokens / self.recorded_tokens))


@dataclass(frozen=True, slots=True)
class _Session:
    """Requests one after the other, those of sub-agents too, each with its blocks, and the waits between them."""

    name: str
    steps: Sequence[Step]
    blocks: Sequence[tuple[int, ...]]
    waits: Sequence[Wait]
    size: BlockScale


def convert(
    path: Path,
    out: Path,
    *,
    jobs: int | None,
    arrivals: Callable[[int], Sequence[float]],
    scale: float,
    max_context: int | None,
    max_gap_s: float,
    left_out: LeftOut,
) -> None:
    """Convert the first `jobs` sessions of a folder by name, all for None, or the one of a file.

    `arrivals` gives so many times in seconds. A session ends before its first request with more than `max_context`
    tokens, after scaling, in prompt and reply together; one that begins with such is left out. Waits are cut to
    `max_gap_s`; fields that are not read are counted in `left_out`. Raises InputError that names file, request and
    field for bad input.
    """
    check_options(jobs, scale)
    if not max_gap_s >= 0:
        raise InputError(f"--max-gap {max_gap_s:g}: give seconds, 0 or more")
    sessions = list(islice(_read_sessions(find_traces(path), scale, max_context, left_out), jobs))
    check_enough(jobs, len(sessions), path)
    sizes = {session.size.block_tokens for session in sessions}
    if len(sizes) > 1:
        raise InputError(f"{path}: block_size: {sorted(sizes)} tokens after scaling; a recording has one size")
    paced = zip(sessions, arrivals(len(sessions)), strict=True)
    lines = [*chain.from_iterable(_list_lines(session, arrival_s, max_gap_s) for session, arrival_s in paced)]
    write_lines(out, lines, kind="agent_traces", block_tokens=sizes.pop())


def _read_sessions(
    paths: Sequence[Path], scale: float, max_context: int | None, left_out: LeftOut
) -> Iterator[_Session]:
    numbers = BlockNumbers()
    for name, trace in chain.from_iterable(read_traces(path, left_out) for path in paths):
        size = BlockScale.of(trace.block_size, scale)
        steps = order_steps(trace)
        if fitting := _count_fitting(steps, size, max_context):
            waits = measure_waits(steps)
            steps = steps[:fitting]
            yield _Session(name, steps, _number_blocks(trace, steps, numbers), waits, size)


def _count_fitting(steps: Sequence[Step], size: BlockScale, max_context: int | None) -> int:
    """Count the steps that come before the first that is too large."""
    if max_context is None:
        return len(steps)
    requests = [step.request for step in steps]
    tokens = [size.prompt_tokens(each.prompt_tokens) + size.reply_tokens(each.reply_tokens) for each in requests]
    return next((place for place, many in enumerate(tokens) if many > max_context), len(steps))


def _number_blocks(trace: Trace, steps: Sequence[Step], numbers: BlockNumbers) -> list[tuple[int, ...]]:
    """Number the blocks of each step's prompt."""
    heads: list[Trace | SubAgent] = [trace, *(entry for entry in trace.requests if isinstance(entry, SubAgent))]
    places: dict[int, list[int]] = {}
    for place, step in enumerate(steps):
        places.setdefault(step.agent, []).append(place)
    threads = [
        Thread(heads[agent].tool_tokens, heads[agent].system_tokens, [steps[place].request for place in own])
        for agent, own in places.items()
    ]
    blocks: dict[int, tuple[int, ...]] = {}
    for own, prompts in zip(places.values(), numbers.number(threads, trace.block_size), strict=True):
        blocks.update(zip(own, prompts, strict=True))
    return [blocks[place] for place in range(len(steps))]


def _list_lines(session: _Session, arrival_s: float, max_gap_s: float) -> Iterator[Line]:
    came_s = arrival_s
    # Nothing is known to follow the last reply.
    waits = [*session.waits[: len(session.steps) - 1], None]
    for step, blocks, wait in zip(session.steps, session.blocks, waits, strict=True):
        calls = wait is not None and wait.by_tool
        yield Line(
            timestamp=1000 * came_s,
            input_length=session.size.prompt_tokens(step.request.prompt_tokens),
            output_length=session.size.reply_tokens(step.request.reply_tokens),
            hash_ids=list(blocks),
            session=session.name,
            latency_ms=0.0,
            called=_CALLED if calls else [],
            end="calls" if calls else "answer",
        )
        came_s += min(wait.seconds, max_gap_s) if wait else 0.0
