"""Holds what is known of a job's request in the engine, as plain values that others fill."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agentcache.engine.marks import Expected, SentPrompt, client_id, read_agent
from agentcache.engine.views import TurnView
from agentcache.engine.vllm.types import PrefillStats, Request
from agentcache.engine.waits import WaitReason
from tool_runtime.learning.job_entry import Agent, JobEntry

# Of what is kept of all jobs' turns, in each of two tables. Clients decide how large a turn is; it counts for so much
# that at most 1,024 are kept.
MAX_TURN_BYTES, LEAST_TURN_BYTES = 64 * 2**20, 64 * 2**10
# Shorter than a step.
_LEAST_S = 0.001


class PromptEnd(NamedTuple):
    """The tokens of a prompt behind its last full block, up to the end of its last message."""

    blocks: int
    tail: tuple[int, ...]

    def is_in(self, tokens: Sequence[int], shared_blocks: int, block_size: int) -> bool:
        """Tell whether a prompt that has `shared_blocks` of these blocks has all of this prompt's messages."""
        behind = self.blocks * block_size
        return self.blocks <= shared_blocks and tuple(tokens[behind : behind + len(self.tail)]) == self.tail


class LeftBranch(NamedTuple):
    """Blocks of a turn, by their hashes, from the block `first` of the prompt on: no prompt will go on from them."""

    first: int
    hashes: Sequence[bytes]


class Overlap(NamedTuple):
    """Tokens that a prompt shares with the turn it goes on from, and where it leaves that turn if it does.

    `abandoned_tokens` of the turn are not in the prompt. `end` is where the turn's own prompt ended, `sent` what its
    client sent, None where that is not known. `leaves`: it is certain that nothing else goes on from the turn.
    """

    shared_tokens: int
    diverged_at: int | None
    abandoned_tokens: int = 0
    end: PromptEnd | None = None
    sent: SentPrompt | None = None
    leaves: bool = False

    def repeats_reply(self, prompt: Sequence[int], block_size: int) -> bool | None:
        """Tell whether the prompt has the turn's reply; None where it lacks messages of the turn, or has no more."""
        if self.end is None:
            return None
        if self.diverged_at is None:
            return True if self.shared_tokens > self.end.blocks * block_size else None
        return False if self.end.is_in(prompt, self.diverged_at // block_size, block_size) else None


class Told(NamedTuple):
    """The sub-agent that asks, None for the main agent, and what its client expects.

    `behind` requests of its job's sub-agents are in the engine, `since_s` is from when on it counts, if not its job.
    """

    agent: Agent | None = None
    expected: Expected = Expected()
    behind: int = 0
    since_s: float = -math.inf


NOTHING_TOLD = Told()


class QueuePriority(NamedTuple):
    """Lower ones are served first. A request's priority stays the same while it waits.

    With `by_arrival` it is served before those that have come after it, whatever their priority.
    """

    rank: int
    time_s: float
    arrival_s: float
    by_arrival: bool = False


@dataclass(slots=True)
class Waits:
    """Seconds by reason of a request that waits since `since_s`. Until another reason is noted, time counts for one."""

    since_s: float
    reason: WaitReason = "batch full"
    _seconds: dict[WaitReason, float] = field(default_factory=dict)

    def note(self, reason: WaitReason, now_s: float) -> None:
        """Note what holds the request from now on."""
        self._seconds[self.reason] = self._seconds.get(self.reason, 0.0) + now_s - self.since_s
        self.reason, self.since_s = reason, now_s

    def end(self, now_s: float) -> dict[WaitReason, float]:
        """Return the seconds by reason of a request that waits no more, without those that lasted less than a step."""
        self.note(self.reason, now_s)
        return {reason: round(seconds, 6) for reason, seconds in self._seconds.items() if seconds >= _LEAST_S}


@dataclass(slots=True, eq=False)
class RequestState:
    """`entry` is its job's, `turn` what is shown of it, `continues` the finished request that it goes on from.

    `request` is the name under which its turn is remembered; `overlap` is what it shares with the turn before, `pinned`
    whether that had a live pin, and `left_s` when that ended. `kept_blocks` are those that it was to hit when it was
    looked at last, of which others that ran had `used_blocks`, and `kept_tokens` the tokens that were in either
    cache. Load control looks at it again at `look_again_s`, and has held it if `was_held`. `repeats_reply`: the job's
    prompts are likely to have the replies before them. `has_run`: it was admitted, and is perhaps preempted since.
    `told` is what its client tells of it.
    """

    request: str
    entry: JobEntry
    turn: TurnView
    priority: QueuePriority
    pinned: bool
    continues: str | None
    overlap: Overlap
    left_s: float
    repeats_reply: bool
    waits: Waits
    told: Told
    kept_blocks: int = 0
    used_blocks: int = 0
    kept_tokens: int = 0
    look_again_s: float = 0.0
    was_held: bool = False
    has_run: bool = False


def begin_turn(request: Request, entry: JobEntry, diverged_at: int | None, now_s: float) -> TurnView:
    """Begin what is shown of the turn of a request that has just come."""
    return TurnView(
        turn=entry.turns + entry.failures + len(entry.running) - 1,
        arrived_s=now_s,
        prompt_tokens=request.num_prompt_tokens,
        diverged_at=diverged_at,
        request_id=client_id(request.request_id),
        thread=read_agent(request),
    )


def note_admission(state: RequestState, now_s: float, stats: PrefillStats | None) -> None:
    """Note that a request runs for the first time, and what it found cached."""
    turn = state.turn
    turn.scheduled_s, turn.waits = now_s, state.waits.end(now_s)
    turn.cached_tokens = stats.num_cached_tokens if stats is not None else 0
    turn.recomputed_tokens = max(0, state.overlap.shared_tokens - turn.cached_tokens)
