"""A request of a job while it is in the engine, and what is said of it when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vllm.v1.request import Request, RequestStatus

from agentcache.engine.constants import CALLS_ARGUMENT, REPLY_ARGUMENT
from agentcache.engine.job_queue import Place
from agentcache.engine.job_views import TurnView
from agentcache.engine.turn_chains import Overlap
from tool_runtime.tool_key import ToolKey


@dataclass(slots=True, eq=False)
class Visit:
    """`continues` is the finished request whose turn this one goes on from, and `overlap` what they share.

    `request` is the name under which its turn is remembered, `pinned` whether that turn had a live pin. `job_number` is
    its job's in the table.
    """

    request: str
    job: str
    turn: int
    arrived_s: float
    place: Place
    pinned: bool
    continues: str | None
    overlap: Overlap
    job_number: int
    scheduled_s: float | None = None
    first_token_s: float | None = None
    cached_tokens: int = 0

    @property
    def lost_tokens(self) -> int:
        """What the turn before had left in the cache and was gone when this request was admitted."""
        return 0 if self.scheduled_s is None else max(0, self.overlap.shared_tokens - self.cached_tokens)


def reusable_hashes(request: Request, block_size: int) -> Sequence[bytes]:
    """Of the blocks that the request can hit, or leaves to others: the KV of its last token is in none of them."""
    return request.block_hashes[: (request.num_tokens - 1) // block_size]


def is_whole(request: Request) -> bool:
    """Whether the reply came to its own end. A recorded one without text has no end-of-turn token."""
    if request.status == RequestStatus.FINISHED_STOPPED:
        return True
    arguments = (request.sampling_params and request.sampling_params.extra_args) or {}
    is_recorded = REPLY_ARGUMENT in arguments and CALLS_ARGUMENT in arguments
    return request.status == RequestStatus.FINISHED_LENGTH_CAPPED and is_recorded


def view_turn(request: Request, visit: Visit, calls: Sequence[ToolKey], now_s: float) -> TurnView:
    """Of a request that has just finished."""
    first_token_s = visit.first_token_s
    if first_token_s is None and request.num_output_tokens:
        # The first was the last as well.
        first_token_s = now_s
    return TurnView(
        turn=visit.turn,
        arrived_s=visit.arrived_s,
        scheduled_s=visit.scheduled_s,
        first_token_s=first_token_s,
        finished_s=now_s,
        prompt_tokens=request.num_prompt_tokens,
        cached_tokens=visit.cached_tokens,
        recomputed_tokens=visit.lost_tokens,
        output_tokens=request.num_output_tokens,
        tools=tuple(dict.fromkeys(call.tool for call in calls)),
        diverged_at=visit.overlap.diverged_at,
        status=_describe_status(request),
    )


def _describe_status(request: Request) -> Literal["finished", "cut off", "aborted", "failed"]:
    if is_whole(request):
        return "finished"
    if request.status in (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_REPETITION):
        return "cut off"
    return "aborted" if request.status == RequestStatus.FINISHED_ABORTED else "failed"
