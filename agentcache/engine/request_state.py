"""Holds what is known of a job's request in the engine, as plain values that others fill."""

from __future__ import annotations

from dataclasses import dataclass

from agentcache.engine.jobs.turn_chains import Overlap
from agentcache.engine.observe.stats import Waits
from agentcache.engine.observe.views import TurnView
from agentcache.engine.order.job_queue import QueuePriority
from tool_runtime.learning.job_entry import JobEntry


@dataclass(slots=True, eq=False)
class RequestState:
    """`entry` is its job's, `turn` what is shown of it, `continues` the finished request that it goes on from.

    `request` is the name under which its turn is remembered; `overlap` is what it shares with the turn before, `pinned`
    whether that had a live pin, and `left_s` when that ended. `kept_blocks` are those that it was to hit when it was
    looked at last, of which others that ran had `used_blocks`, and `kept_tokens` the tokens that were in either
    cache. Load control looks at it again at `look_again_s`, and has held it if `was_held`. `repeats_reply`: the job's
    prompts are likely to have the replies before them. `has_run`: it was admitted, and is perhaps preempted since.
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
    kept_blocks: int = 0
    used_blocks: int = 0
    kept_tokens: int = 0
    look_again_s: float = 0.0
    was_held: bool = False
    has_run: bool = False
