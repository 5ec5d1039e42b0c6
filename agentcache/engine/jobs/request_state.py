"""Holds what is known of a job's request in the engine, with what is shown of its turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from agentcache.engine.jobs.turn_chains import Overlap
from agentcache.engine.observe.views import TurnView
from agentcache.engine.order.job_queue import QueuePriority
from agentcache.engine.replies.ended_reply import describe_status
from agentcache.engine.vllm.types import PrefillStats, Request
from agentcache.engine.waits import WaitReason
from tool_runtime.learning.job_entry import JobEntry
from tool_runtime.learning.tool_key import ToolKey

# A reply, which a client may dictate, can call thousands.
_MAX_TOOLS = 16
# Shorter than a step.
_LEAST_S = 0.001


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
    cache. Load control looks at it again at `look_again_s`, and has held it if `was_held`.
    `repeats_reply`: the job's prompts are likely to have the replies before them.
    """

    request: str
    entry: JobEntry
    turn: TurnView
    priority: QueuePriority
    pinned: bool
    continues: str | None
    overlap: Overlap
    left_s: float
    kept_blocks: int = 0
    used_blocks: int = 0
    kept_tokens: int = 0
    look_again_s: float = 0.0
    was_held: bool = False
    repeats_reply: bool = True
    waits: Waits = field(init=False)

    def __post_init__(self) -> None:
        """Let the request wait."""
        self.waits = Waits(self.turn.arrived_s)

    @property
    def has_run(self) -> bool:
        """Whether it was admitted before, and perhaps preempted since."""
        return self.turn.scheduled_s is not None

    def admit(self, now_s: float, stats: PrefillStats | None) -> None:
        """Note that it runs for the first time, and what it found cached."""
        turn = self.turn
        turn.scheduled_s, turn.waits = now_s, self.waits.end(now_s)
        turn.cached_tokens = stats.num_cached_tokens if stats is not None else 0
        turn.recomputed_tokens = max(0, self.overlap.shared_tokens - turn.cached_tokens)

    def end(self, request: Request, calls: Sequence[ToolKey], now_s: float) -> TurnView:
        """Note that it has finished with these calls; return its turn."""
        turn = self.turn
        if not self.has_run:
            turn.waits = self.waits.end(now_s)
        if turn.first_token_s is None and request.num_output_tokens:
            # The first was the last as well.
            turn.first_token_s = now_s
        turn.finished_s, turn.status = now_s, describe_status(request)
        turn.output_tokens = request.num_output_tokens
        turn.tools = tuple(islice(dict.fromkeys(call.tool for call in calls), _MAX_TOOLS))
        return turn


def begin_turn(request: Request, entry: JobEntry, overlap: Overlap, now_s: float) -> TurnView:
    """Begin what is shown of the turn of a request that has just come."""
    return TurnView(
        turn=entry.turns + entry.failures + len(entry.running) - 1,
        arrived_s=now_s,
        prompt_tokens=request.num_prompt_tokens,
        diverged_at=overlap.diverged_at,
    )


def reusable_hashes(request: Request, block_size: int) -> Sequence[bytes]:
    """Return the hashes of the blocks that the request can hit, or leaves to others: without its last token's KV."""
    return request.block_hashes[: (request.num_tokens - 1) // block_size]
