"""Describes jobs as plain values that can leave the engine's process.

Times are seconds on the engine's own monotonic clock; `now_s` of a view is when it was taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, with_config

from agentcache.engine.job_summary import AgentView, JobSummary
from agentcache.engine.waits import WaitReason


class View(BaseModel):
    """Plain values that the engine tells of itself, as copies: counts go on while it runs."""

    model_config = ConfigDict(extra="forbid")


MissReason = Literal["new", "changed", "evicted", "behind a gap", "at another engine", "not read"]
# The cache on the GPU, the CPU cache, and what else a KV connector of vLLM's loads from: a disk; or
# another engine, or what it does not tell.
HitPlace = Literal["gpu", "host", "disk", "elsewhere"]
# How an evicted block came to be computed again: it left the GPU without a copy, because it was never chosen for one,
# was not worth one, was written over before its copy was made, or every block of the CPU cache was being copied to;
# its copy was evicted from the CPU cache; or that is there, and was not fetched.
LossCause = Literal["never chosen", "not worth a copy", "overwritten", "no room", "evicted", "not fetched"]
PLACE_OF: Mapping[LossCause, HitPlace] = {
    "never chosen": "gpu",
    "not worth a copy": "gpu",
    "overwritten": "gpu",
    "no room": "gpu",
    "evicted": "host",
    "not fetched": "host",
}
# By the client's name, the response that it continues, or the tokens that it repeats; nothing was to be found for the
# first request of a job without a name, and nothing was found though the prompt has an earlier reply.
FoundBy = Literal["named", "response", "repeated", "first", "unmatched"]
ChangeCause = Literal[
    "adapter changed",
    "tools reordered",
    "tools left out",
    "tools changed",
    "tool text changed",
    "system message changed",
    "history summarised",
    "history truncated",
    "history edited",
    "history changed",
    "reply not repeated",
    "options changed",
    "rendered anew",
    "unknown",
]


class ChangeText(View):
    """What stands around the first different token, `at_token`: before it, and what the last turn and this one have.

    These are token ids, which leave the engine where text may be shown; the API server puts text in their place.
    """

    at_token: int
    before: tuple[int, ...] | str
    was: tuple[int, ...] | str
    now: tuple[int, ...] | str


class ChangeView(View):
    """Where a prompt leaves the prompt and reply of the turn that it goes on from."""

    at_token: int = Field(description="in whole blocks: the first different token is in the block that begins here")
    cause: ChangeCause
    left_tokens: int = Field(default=0, description="of the last turn, in whole blocks, that the prompt has not")
    role: str | None = Field(description="of the message that differs; None where that is not known")
    text: ChangeText | None = Field(default=None, description="None unless runtime.show_text")


class LossView(View):
    """Evictions of a turn's blocks from one place, whose room one session got."""

    tokens: int
    place: HitPlace | None = Field(default=None, description="where their KV was last; None without a second cache")
    evicted_s: float = Field(description="the latest of them")
    ago_s: float = Field(description="from then until the turn was admitted")
    taker: str | None = Field(
        description="the session; None where there is none, where it may not be shown, and for the CPU cache, "
        "whose room goes to copies for several sessions"
    )


@with_config(extra="forbid")
@dataclass(slots=True, kw_only=True)
class TurnView:
    """One request of a job, filled while it is in the engine, and shown when it is over.

    One is made of each turn, and few are read: so it is checked when it is.
    """

    turn: Annotated[int, Field(description="from 0")]
    arrived_s: float
    scheduled_s: Annotated[float | None, Field(description="None when it never ran")] = None
    first_token_s: float | None = None
    finished_s: float = 0.0
    prompt_tokens: int
    cached_tokens: int = 0
    computed_tokens: Annotated[int, Field(description="of the prompt; fewer than it lacked if cut short")] = 0
    recomputed_tokens: Annotated[
        int, Field(description="of the last turn's blocks that this prompt repeats, those not cached")
    ] = 0
    output_tokens: int = 0
    tools: Annotated[tuple[str, ...], Field(description="names of the tools that the reply called, 16 at most")] = ()
    diverged_at: Annotated[
        int | None,
        Field(
            description="first token, in whole blocks, at which this prompt leaves the last turn's prompt and reply; "
            "None when it goes on from them, or when that is not known"
        ),
    ]
    status: Literal["finished", "cut off", "aborted", "failed"] = "failed"
    misses: Annotated[dict[MissReason, int], Field(description="prompt tokens that were not cached, by reason")] = (
        field(default_factory=dict)
    )
    change: Annotated[ChangeView | None, Field(description="None when the prompt goes on from the last turn")] = None
    lost_to: Annotated[tuple[LossView, ...], Field(description="of the evicted, the largest losses first")] = ()
    hits: Annotated[
        dict[HitPlace, int],
        Field(description="cached tokens; all but `gpu` were fetched for this request. Empty without a second cache"),
    ] = field(default_factory=dict)
    evicted_from: Annotated[
        dict[LossCause, int],
        Field(description="evicted tokens, by how they were lost; empty without a second cache"),
    ] = field(default_factory=dict)
    waits: Annotated[
        dict[WaitReason, float],
        Field(description="seconds from its arrival until it ran, by what held it; those below 1 ms are left out"),
    ] = field(default_factory=dict)
    request_id: Annotated[str, Field(description="as the client has it")] = ""
    thread: Annotated[str | None, Field(description="the agent of its session that asked, if its client says")] = None


class PinView(View):
    """The KV of one finished turn, kept while its job is away."""

    turn: int
    began_s: float
    expires_s: float
    blocks: int = Field(description="at its beginning")
    blocks_left: int
    value_s: float = Field(description="seconds that it was expected to save")
    ended_s: float | None = Field(description="None while it lives")
    cause: str | None = Field(description="of its end: returned, expired, budget, pressure, reset, job over, released")


class JobView(View):
    """One job. A session of several tenants is several jobs."""

    session: str
    now_s: float
    arrived_s: float
    last_active_s: float
    turns: tuple[TurnView, ...] = Field(description="the latest, oldest first")
    turn_count: int
    call_count: int
    failure_count: int
    running: int = Field(description="requests of it in the engine now")
    waits_for: tuple[str, ...] = Field(description="tools that are out; a turn without calls waits for its human")
    is_over: bool
    agents: tuple[AgentView, ...] = Field(default=(), description="its sub-agents, as they began, 64 at most")
    pins: tuple[PinView, ...] = Field(description="the latest, oldest first")
    hits: dict[HitPlace, int] = Field(default={}, description="as of its turns, of all of them")
    evicted_from: dict[LossCause, int] = Field(default={}, description="as of its turns, of all of them")
    summary: JobSummary | None = Field(default=None, description="None until the job has left the table")


@with_config(extra="forbid")
@dataclass(slots=True)
class Histogram:
    """Counts values: `buckets[i]` those up to `bounds[i]` (cumulative), `count` all; `total` is their sum."""

    bounds: tuple[float, ...]
    buckets: tuple[int, ...]
    count: int = 0
    total: float = 0.0


class ToolCounts(View):
    """Gaps behind turns that called this tool, until the job's next request."""

    gaps: int = 0
    seconds: float = 0.0


class TenantCounts(View):
    """What a tenant took, of turns and jobs that have ended."""

    turns: int = 0
    gpu_s: float = Field(default=0.0, description="seconds of GPUs, by the cost model, as if each turn ran alone")
    wait_s: float = Field(default=0.0, description="from arrival until it ran, summed")
    jobs: int = 0
    job_latency_s: float = Field(default=0.0, description="first arrival to last reply, summed")


class PinCounts(View):
    """Pins since the start of the engine, in blocks and seconds."""

    live: int = 0
    blocks: int = Field(default=0, description="pinned now")
    budget_blocks: int = 0
    began: int = 0
    ended: dict[str, int] = Field(default={}, description="by cause")
    held_s: float = Field(default=0.0, description="of ended pins, from beginning to end, summed")


class ComparisonCounts(View):
    """Requests admitted since the start, against a shadow LRU that was given the same at the same times."""

    prompt_tokens: int = 0
    reused_tokens: int = Field(default=0, description="that were not computed, those from the CPU cache included")
    lru_tokens: int = Field(default=0, description="that the shadow LRU would have hit")
    saved_s: float = Field(default=0.0, description="prefill that requests computed less than under LRU, estimated")
    lost_s: float = Field(default=0.0, description="prefill that other requests computed more, estimated")


class SegmentCounts(View):
    """Counts of multi-segment reuse since the start."""

    requests: Counter[int] = Field(
        default=Counter(), description="requests that had gaps filled, by their number of segments"
    )
    fill_tokens: int = Field(default=0, description="tokens of admitted requests that fill requests computed")
    islands_dropped: int = Field(
        default=0, description="runs of cached blocks behind a gap that were not worth a fill request"
    )
    fallbacks: Counter[str] = Field(default=Counter(), description="requests that could have no gaps, by reason")


class TierCounts(View):
    """Counts of the CPU cache, in blocks where nothing else is said."""

    total: int
    used: int = Field(default=0, description="hold KV now")
    stored: int = Field(default=0, description="copied from the GPU since the start")
    overwritten: int = Field(
        default=0, description="whose GPU block was reused before the copy was made, since the start"
    )
    avoided: int = Field(
        default=0, description="were about to be evicted and not stored: few like them were ever fetched"
    )
    fetched: int = Field(default=0, description="copied to the GPU since the start")
    failed_stores: int = Field(default=0, description="whose copies from the GPU could not be made, since the start")
    failed_fetches: int = Field(default=0, description="whose copies to the GPU could not be made, since the start")
    evicted: int = Field(default=0, description="lost from here since the start")
    block_bytes: int = Field(description="of one block, on all GPUs of the engine together")
    store_s: float = Field(default=0.0, description="seconds that copies from the GPUs took which were made, summed")
    fetch_s: float = Field(default=0.0, description="seconds that copies to the GPUs took which were made, summed")


_LATENCY_BOUNDS_S = (1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)
_TURN_BOUNDS = (1, 2, 3, 5, 8, 12, 20, 30, 50, 100)
_NO_LATENCIES = Histogram(_LATENCY_BOUNDS_S, (0,) * len(_LATENCY_BOUNDS_S))
_NO_TURNS = Histogram(_TURN_BOUNDS, (0,) * len(_TURN_BOUNDS))


class RuntimeCounts(View):
    """Counts of the agent runtime, since the start."""

    jobs: int = Field(default=0, description="in the table now")
    jobs_ended: Counter[str] = Field(default=Counter(), description="by cause: job over, expired, table full")
    job_latency_s: Histogram = Field(
        default=_NO_LATENCIES, description="first arrival to last reply, of jobs that ended"
    )
    answer_latency_s: Histogram = Field(
        default=_NO_LATENCIES, description="question to answer: a whole reply that calls no tool"
    )
    job_turns: Histogram = _NO_TURNS
    tools: dict[str, ToolCounts] = Field(
        default={}, description="by tool, at most 32 names; the rest is `other`, and a human's pause `(human)`"
    )
    tenants: dict[str, TenantCounts] = Field(
        default={}, description="by name, of the 20 that took most, where tenants have shares; the rest is `other`"
    )
    pins: PinCounts = PinCounts()
    prompt_tokens: int = 0
    hit_tokens: int = 0
    recomputed_tokens: int = 0
    missed_tokens: Counter[MissReason] = Field(default=Counter(), description="prompt tokens not cached, by reason")
    hits: Counter[HitPlace] = Field(default=Counter(), description="hit tokens by place; empty without a second cache")
    evicted_from: Counter[LossCause] = Field(
        default=Counter(),
        description="evicted tokens that were missed, by how they were lost; empty without a second cache",
    )
    changed_prompts: Counter[ChangeCause] = Field(
        default=Counter(), description="turns whose prompt left the last turn, by cause"
    )
    left_tokens: Counter[ChangeCause] = Field(
        default=Counter(), description="tokens of last turns that such prompts have not, by cause"
    )
    found_jobs: Counter[FoundBy] = Field(default=Counter(), description="requests, by how their job was found")
    waits: dict[WaitReason, Histogram] = Field(
        default={}, description="seconds that turns waited, by what held them; of turns that it held for 1 ms or more"
    )
    log_lost: int = Field(default=0, description="jobs that are missing in the job log")
    spans_lost: int = Field(default=0, description="spans that the collector did not take")
    held_turns: int = Field(
        default=0, description="that waited to compute their contexts, because jobs wanted more than the caches hold"
    )
