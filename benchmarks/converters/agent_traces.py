"""Traces of coding agents: sizes, block hashes and times of each session's requests, but no text.

A folder of trace_*.json of github.com/callanjfox/kv-cache-tester, one of these files, or, as data sets of such traces
are published, a file of one session a line. Block ids mean something within one session only; `agent_blocks` says
what sessions are taken to share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from agentcache.errors import InputError
from converters.agent_blocks import BlockNumbers, Thread
from converters.agent_timeline import Step, TimedAgent, measure_agents, order_steps
from converters.agent_trace_file import SubAgent, Trace, find_traces, read_traces
from converters.family_lines import Agent, Request, list_family_lines
from converters.left_out import LeftOut
from converters.recorded import check_options, write_lines
from workloads.loaded import check_enough

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
    """A session's agents, and the blocks of their requests."""

    name: str
    agents: Sequence[TimedAgent]
    blocks: Mapping[int, Sequence[tuple[int, ...]]]
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
    lines = [
        line
        for session, arrival_s in paced
        for line in list_family_lines(session.name, arrival_s, [*_list_agents(session, max_gap_s)])
    ]
    write_lines(out, lines, kind="agent_traces", block_tokens=sizes.pop())


def _read_sessions(
    paths: Sequence[Path], scale: float, max_context: int | None, left_out: LeftOut
) -> Iterator[_Session]:
    numbers = BlockNumbers()
    for name, trace in chain.from_iterable(read_traces(path, left_out) for path in paths):
        size = BlockScale.of(trace.block_size, scale)
        steps = order_steps(trace)
        if fitting := _count_fitting(steps, size, max_context):
            steps = steps[:fitting]
            yield _Session(name, measure_agents(trace, steps), _number_blocks(trace, steps, numbers), size)


def _count_fitting(steps: Sequence[Step], size: BlockScale, max_context: int | None) -> int:
    """Count the steps that come before the first that is too large."""
    if max_context is None:
        return len(steps)
    requests = [step.request for step in steps]
    tokens = [size.prompt_tokens(each.prompt_tokens) + size.reply_tokens(each.reply_tokens) for each in requests]
    return next((place for place, many in enumerate(tokens) if many > max_context), len(steps))


def _number_blocks(
    trace: Trace, steps: Sequence[Step], numbers: BlockNumbers
) -> Mapping[int, Sequence[tuple[int, ...]]]:
    """Number the blocks of each agent's prompts."""
    heads: list[Trace | SubAgent] = [trace, *(entry for entry in trace.requests if isinstance(entry, SubAgent))]
    by_agent: dict[int, list[Step]] = {}
    for step in steps:
        by_agent.setdefault(step.agent, []).append(step)
    threads = [
        Thread(heads[agent].tool_tokens, heads[agent].system_tokens, [step.request for step in own])
        for agent, own in by_agent.items()
    ]
    return dict(zip(by_agent, numbers.number(threads, trace.block_size), strict=True))


def _list_agents(session: _Session, max_gap_s: float) -> Iterator[Agent]:
    for agent in session.agents:
        yield Agent(
            [*_list_requests(session, agent, max_gap_s)],
            name=f"agent-{agent.number}" if agent.number else None,
            behind=agent.behind,
            delay_s=min(agent.delay_s, max_gap_s),
            is_awaited=agent.is_awaited,
        )


def _list_requests(session: _Session, agent: TimedAgent, max_gap_s: float) -> Iterator[Request]:
    # Nothing is known to follow the last reply.
    waits = [*agent.waits, None]
    blocks = session.blocks.get(agent.number, ())
    for step, took_s, own, wait in zip(agent.steps, agent.took_s, blocks, waits, strict=False):
        yield Request(
            tokens=session.size.prompt_tokens(step.request.prompt_tokens),
            reply_tokens=session.size.reply_tokens(step.request.reply_tokens),
            blocks=own,
            reply_blocks=(),
            took_s=took_s,
            wait_s=min(wait.seconds, max_gap_s) if wait else 0.0,
            called=_CALLED if wait is not None and wait.by_tool else [],
        )
