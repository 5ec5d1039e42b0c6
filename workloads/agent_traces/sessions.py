"""Makes jobs of recorded agent sessions: one turn a request, with the recorded blocks as its context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from agentcache.errors import InputError
from tool_runtime.agent.job import Context, Job, ToolCall, ToolResult, Turn
from workloads.agent_traces.block_numbers import BlockNumbers, Thread
from workloads.agent_traces.trace_file import (
    Step,
    SubAgent,
    Trace,
    Wait,
    find_traces,
    measure_waits,
    order_steps,
    read_trace,
)
from workloads.loaded import LoadedJobs, check_enough, check_options

_SHARING_NOTE = (
    "Block ids are recorded per session. Sharing between sessions is ours: the blocks of the tool definitions, the "
    "first of every prompt, are one where these are equally long, and those of the system prompt behind them where "
    "that is equally long too"
)
_UNKNOWN_STOP_NOTE = "replies without a recorded stop count as tool calls, as the waits after them are as long as those"


@dataclass(slots=True)
class Tally:
    """Counts of requests, but for those named otherwise."""

    sessions: int = 0
    requests: int = 0
    head_tokens: int = 0
    sub_agents: int = 0
    of_sub_agents: int = 0
    tool_waits: int = 0
    pauses: int = 0
    estimated_waits: int = 0
    capped_waits: int = 0
    cut_sessions: int = 0
    cut_off: int = 0
    passed_over: int = 0

    def count_wait(self, wait: Wait, max_gap_s: float) -> None:
        """Count a wait, which is cut to `max_gap_s` seconds."""
        self.tool_waits += wait.by_tool
        self.pauses += not wait.by_tool
        self.estimated_waits += wait.estimated
        self.capped_waits += wait.seconds > max_gap_s

    def describe(self, *, scale: float, max_context: int | None, max_gap_s: float) -> Iterator[str]:
        """Describe the counts in sentences; the arguments are what the jobs were made with."""
        yield (
            f"{self.sessions} agent sessions, {self.requests} requests: sizes, the equality of blocks and times are "
            "recorded, the text is not."
        )
        yield f"{_SHARING_NOTE} ({self.head_tokens / max(1, self.sessions):.0f} tokens a session, before scaling)."
        yield (
            f"Waits are the recorded ones, {self.tool_waits} for a tool and {self.pauses} for a human; "
            f"{_UNKNOWN_STOP_NOTE}; {self.capped_waits} waits were longer than {max_gap_s:g} s and are cut to it."
        )
        if self.estimated_waits:
            yield (
                f"{self.estimated_waits} waits follow a reply whose time was not recorded: that is estimated from its "
                "tokens and the session's other replies."
            )
        if self.sub_agents:
            yield (
                f"{self.sub_agents} sub-agents with {self.of_sub_agents} requests run inside their session, in the "
                "recorded order; those that ran in parallel take turns."
            )
        if scale != 1:
            yield f"All sizes are multiplied by about {scale:g}, such that a block has a whole number of tokens."
        if max_context is not None:
            yield (
                f"{self.cut_sessions} sessions end early, before the first request of more than {max_context} tokens "
                f"({self.cut_off} requests left out); {self.passed_over} sessions begin with one and are left out."
            )


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
