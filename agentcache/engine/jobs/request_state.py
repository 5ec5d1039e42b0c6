"""Holds what is known of a job's request in the engine, and views it as a turn when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from agentcache.engine.jobs.turn_chains import Overlap
from agentcache.engine.jobs.views import ChangeView, HitPlace, LossCause, LossView, MissReason, TurnView
from agentcache.engine.marks import find_forced_calls
from agentcache.engine.order.job_queue import QueuePriority
from agentcache.engine.replies.ended_reply import is_handed_over
from agentcache.engine.vllm.types import Request, RequestStatus
from agentcache.engine.waits import WaitReason, Waits
from tool_runtime.learning.tool_key import ToolKey

# A reply, which a client may dictate, can call thousands.
_MAX_TOOLS = 16


@dataclass(slots=True, eq=False)
class RequestState:
    """`continues` is the finished request whose turn this one goes on from, and `overlap` what they share.

    `request` is the name under which its turn is remembered, `pinned` whether that turn had a live pin. `job_number` is
    its job's in the table, `repeats_reply` whether the job's prompts are likely to have the replies before them.
    `left_s` is when the turn that it goes on from ended. `kept_blocks` are those that it was to hit when it was looked
    at last, of which others that ran had `used_blocks`; `lost_context`: most of its prompt was not cached any more, so
    that load control may hold it, or has (`was_held`), and looks at it again at `look_again_s`.
    """

    request: str
    job: str
    turn: int
    arrived_s: float
    priority: QueuePriority
    pinned: bool
    continues: str | None
    overlap: Overlap
    job_number: int
    left_s: float = 0.0
    kept_blocks: int = 0
    used_blocks: int = 0
    lost_context: bool = False
    look_again_s: float = 0.0
    was_held: bool = False
    scheduled_s: float | None = None
    first_token_s: float | None = None
    cached_tokens: int = 0
    change: ChangeView | None = None
    repeats_reply: bool = True
    misses: dict[MissReason, int] = field(default_factory=dict)
    lost_to: tuple[LossView, ...] = ()
    hits: dict[HitPlace, int] = field(default_factory=dict)
    evicted_from: dict[LossCause, int] = field(default_factory=dict)
    waits: Waits = field(init=False)
    waited_s: dict[WaitReason, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Let the request wait."""
        self.waits = Waits(self.arrived_s)

    @property
    def lost_tokens(self) -> int:
        """The tokens that the turn before had left in the cache and that were gone when this request was admitted."""
        return 0 if self.scheduled_s is None else max(0, self.overlap.shared_tokens - self.cached_tokens)


def reusable_hashes(request: Request, block_size: int) -> Sequence[bytes]:
    """Return the hashes of the blocks that the request can hit, or leaves to others: without its last token's KV."""
    return request.block_hashes[: (request.num_tokens - 1) // block_size]


def is_whole(request: Request) -> bool:
    """Tell whether the reply came to its own end here. A recorded one without text has no end-of-turn token.

    One that another engine goes on with is whole, though its text is not known here. So is one whose client wants
    no other end than its length (`ignore_eos`), as AIPerf's AgentX does: it was not cut off.
    """
    if request.status == RequestStatus.FINISHED_STOPPED or is_handed_over(request):
        return True
    return request.status == RequestStatus.FINISHED_LENGTH_CAPPED and (_is_recorded(request) or is_made_up(request))


def is_made_up(request: Request) -> bool:
    """Tell whether the length that `ignore_eos` asks for is all that ended the reply: what it says tells nothing."""
    params = request.sampling_params
    is_full = request.status == RequestStatus.FINISHED_LENGTH_CAPPED
    return is_full and params is not None and params.ignore_eos and not _is_recorded(request)


def is_answer(request: Request, calls: Sequence[ToolKey]) -> bool:
    """Tell whether a whole reply is the last for now: it calls no tool, and is not made up."""
    return not calls and not is_made_up(request)


def _is_recorded(request: Request) -> bool:
    return find_forced_calls(request.sampling_params) is not None


def view_turn(request: Request, state: RequestState, calls: Sequence[ToolKey], now_s: float) -> TurnView:
    """View the turn of a request that has just finished."""
    first_token_s = state.first_token_s
    if first_token_s is None and request.num_output_tokens:
        # The first was the last as well.
        first_token_s = now_s
    return TurnView(
        turn=state.turn,
        arrived_s=state.arrived_s,
        scheduled_s=state.scheduled_s,
        first_token_s=first_token_s,
        finished_s=now_s,
        prompt_tokens=request.num_prompt_tokens,
        cached_tokens=state.cached_tokens,
        recomputed_tokens=state.lost_tokens,
        output_tokens=request.num_output_tokens,
        tools=tuple(islice(dict.fromkeys(call.tool for call in calls), _MAX_TOOLS)),
        diverged_at=state.overlap.diverged_at,
        status=_describe_status(request),
        misses=state.misses,
        change=state.change,
        lost_to=state.lost_to,
        hits=state.hits,
        evicted_from=state.evicted_from,
        waits=state.waits.end(now_s) if state.scheduled_s is None else state.waited_s,
    )


def _describe_status(request: Request) -> Literal["finished", "cut off", "aborted", "failed"]:
    if is_whole(request):
        return "finished"
    if request.status in (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_REPETITION):
        return "cut off"
    return "aborted" if request.status == RequestStatus.FINISHED_ABORTED else "failed"
