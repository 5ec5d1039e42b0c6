"""Recorded agent sessions as jobs: one turn a request, with the recorded blocks as its context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from agentcache.errors import InputError
from tool_runtime.agent.job import Context, Job, ToolCall, ToolResult, Turn
from workloads.agent_traces.block_numbers import BlockNumbers, Thread
from workloads.agent_traces.tally import Tally
from workloads.agent_traces.timeline import Step, Wait, measure_waits, order_steps
from workloads.agent_traces.trace_file import SubAgent, Trace, find_traces, read_trace
from workloads.loaded import LoadedJobs, check_enough, check_options

# The recording does not name the tools.
_CALL = ToolCall("tool", "{}")


def load_sessions(
    path: Path,
    *,
    jobs: int | None,
    arrivals: Callable[[int], Sequence[float]],
    scale: float,
    max_context: int | None,
    max_gap_s: float,
) -> LoadedJobs:
    """Load the first `jobs` sessions of a folder of trace_*.json by name, all for None, or the one of a file.

    `arrivals` gives so many times in seconds. A session ends before its first request with more than `max_context`
    tokens, after scaling, in prompt and reply together; one that begins with such is passed over. Waits are cut to
    `max_gap_s`. Raises InputError that names file, request and field for bad input.
    """
    check_options(jobs, scale)
    if not max_gap_s >= 0:
        raise InputError(f"--max-gap {max_gap_s:g}: give seconds, 0 or more")
    tally = Tally()
    loader = _Loader(tally, scale, max_context, max_gap_s)
    loaded = list(islice(loader.load(find_traces(path)), jobs))
    check_enough(jobs, len(loaded), path)
    times = arrivals(len(loaded))
    return LoadedJobs(
        jobs=[replace(job, arrival_s=arrival_s) for job, arrival_s in zip(loaded, times, strict=True)],
        notes=tuple(tally.describe(scale=scale, max_context=max_context, max_gap_s=max_gap_s)),
        shared_blocks=loader.shared_blocks,
    )


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


class _Loader:
    def __init__(self, tally: Tally, scale: float, max_context: int | None, max_gap_s: float) -> None:
        self._tally = tally
        self._scale = scale
        self._max_context = max_context
        self._max_gap_s = max_gap_s
        self._numbers = BlockNumbers()

    @property
    def shared_blocks(self) -> frozenset[int]:
        return self._numbers.shared

    def load(self, paths: Sequence[Path]) -> Iterator[Job]:
        for path in paths:
            trace = read_trace(path)
            size = BlockScale.of(trace.block_size, self._scale)
            steps = order_steps(trace)
            fitting = self._count_fitting(steps, size)
            if fitting:
                contexts = self._build_contexts(trace, steps[:fitting], size)
                yield Job(path.stem, (), turns=tuple(self._build_turns(contexts, measure_waits(steps))))

    def _count_fitting(self, steps: Sequence[Step], size: BlockScale) -> int:
        """Count the steps that come before the first that is too large."""
        fitting = len(steps)
        if self._max_context is not None:
            for index, step in enumerate(steps):
                request = step.request
                tokens = size.prompt_tokens(request.prompt_tokens) + size.reply_tokens(request.reply_tokens)
                if tokens > self._max_context:
                    fitting = index
                    break
        self._tally.passed_over += fitting == 0
        if 0 < fitting < len(steps):
            self._tally.cut_sessions += 1
            self._tally.cut_off += len(steps) - fitting
        return fitting

    def _build_contexts(self, trace: Trace, steps: Sequence[Step], size: BlockScale) -> list[Context]:
        """Build one context a step, in their order."""
        heads: list[Trace | SubAgent] = [trace, *(entry for entry in trace.requests if isinstance(entry, SubAgent))]
        places: dict[int, list[int]] = {}
        for place, step in enumerate(steps):
            places.setdefault(step.agent, []).append(place)
        threads = [
            Thread(heads[agent].tool_tokens, heads[agent].system_tokens, [steps[place].request for place in own])
            for agent, own in places.items()
        ]
        blocks: dict[int, tuple[int, ...]] = {}
        for own, prompts in zip(places.values(), self._numbers.number(threads, trace.block_size), strict=True):
            blocks.update(zip(own, prompts, strict=True))
        self._tally.sessions += 1
        self._tally.requests += len(steps)
        self._tally.head_tokens += trace.tool_tokens + trace.system_tokens
        self._tally.sub_agents += len(places.keys() - {0})
        self._tally.of_sub_agents += sum(step.agent != 0 for step in steps)
        return [_build_context(step, blocks[place], size) for place, step in enumerate(steps)]

    def _build_turns(self, contexts: Sequence[Context], waits: Sequence[Wait]) -> Iterator[Turn]:
        for context, wait in zip(contexts[:-1], waits, strict=False):
            self._tally.count_wait(wait, self._max_gap_s)
            seconds = min(wait.seconds, self._max_gap_s)
            if wait.by_tool:
                yield Turn(tool_calls=(_CALL,), results=(ToolResult("", seconds),), context=context)
            else:
                yield Turn(pause_s=seconds, context=context)
        yield Turn(context=contexts[-1])


def _build_context(step: Step, blocks: tuple[int, ...], size: BlockScale) -> Context:
    return Context(
        blocks=blocks,
        block_tokens=size.block_tokens,
        tokens=size.prompt_tokens(step.request.prompt_tokens),
        reply_tokens=size.reply_tokens(step.request.reply_tokens),
    )
