"""Copies what the scheduler counts to plain values that can leave the engine's process."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from agentcache._evictor import Evictor, PinnedEvictor
from agentcache.engine.blocks.block_queue import Evictions
from agentcache.engine.rpc.job_views import count_runtime
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.segments.obstacles import find_engine_obstacle
from agentcache.engine.views import ComparisonCounts, RuntimeCounts, SegmentCounts, TierCounts, View
from agentcache.engine.vllm.engine import EngineCoreProc

# The method of the engine core that answers with a snapshot.
SNAPSHOT_METHOD = "agentcache_snapshot"


class BlockCounts(View):
    """Blocks of the KV cache, now. Free ones may hold KV that is reused."""

    total: int
    used: int
    free: int
    tokens_per_block: int


class RequestCounts(View):
    """The clients' own, now: fill requests are left out."""

    running: int
    waiting: int


class Snapshot(View):
    """One engine. What its policy does not have is None or empty."""

    policy: str
    knobs: dict[str, Any] = Field(description="AgentCacheConfig, with what the policy decided filled in")
    segments: SegmentCounts | None
    segments_obstacle: str | None = Field(description="why this engine can reuse cached blocks only as prefixes")
    segments_obstacle_slug: str | None = Field(default=None, description="the same in a word, as the metric has it")
    tier_obstacle: str | None = Field(default=None, description="why the CPU cache is vLLM's own tier, not steered")
    tier_obstacle_slug: str | None = Field(default=None, description="the same in a word, as the metric has it")
    evictions: dict[str, Evictions] = Field(description="by cause")
    lambda_value: float | None = Field(description="λ of the evictor")
    prefill_budget: int | None = Field(description="prompt tokens that the last step could have had")
    blocks: BlockCounts
    tier: TierCounts | None = Field(default=None, description="None where the policy steers no tier")
    comparison: ComparisonCounts | None = Field(default=None, description="None where there is no shadow LRU")
    observer_failures: dict[str, int] = Field(
        default={}, description="1 for each part that only explains, failed, and is off since; 0 for the others"
    )
    requests: RequestCounts
    runtime: RuntimeCounts | None = Field(default=None, description="of the agent runtime; None where there is none")


class EngineSnapshot(Snapshot):
    """`engine` is its data-parallel rank, as in the label `engine` of vLLM's own metrics."""

    engine: int


def make_snapshot(scheduler: AgentScheduler) -> Snapshot:
    """Make a snapshot without changing anything; O(1) in requests and blocks. What cannot be read is left out."""
    config, filler, queue = scheduler.config, scheduler.gap_filler, scheduler.block_queue
    knobs = config.model_dump()
    knobs["segments"]["enabled"] = filler is not None
    knobs["chunking"]["enabled"] = scheduler.step_limit.tuning is not None
    tier, comparison, tracker = scheduler.tier, scheduler.comparison, scheduler.tracker
    read = scheduler.snapshot_guard.ask
    obstacle = find_engine_obstacle(scheduler) if filler is None else None
    return Snapshot(
        policy=config.policy,
        knobs=knobs,
        segments=read(None, filler.stats.model_copy, deep=True) if filler is not None else None,
        segments_obstacle=obstacle.text if obstacle is not None else None,
        segments_obstacle_slug=obstacle.slug if obstacle is not None else None,
        tier_obstacle=scheduler.tier_obstacle.text if scheduler.tier_obstacle is not None else None,
        tier_obstacle_slug=scheduler.tier_obstacle.slug if scheduler.tier_obstacle is not None else None,
        evictions=read({}, lambda: queue.evictions) if queue is not None else {},
        lambda_value=read(None, _read_lambda, scheduler.evictor),
        prefill_budget=scheduler.step_limit.budget,
        blocks=_count_blocks(scheduler),
        tier=read(None, tier.count) if tier is not None else None,
        comparison=read(None, comparison.stats.model_copy) if comparison is not None else None,
        requests=_count_requests(scheduler),
        runtime=tracker.stats_guard.ask(None, count_runtime, tracker) if tracker is not None else None,
        # The last, which tells of those before.
        observer_failures=dict(scheduler.observers.failures),
    )


def snapshot_core(core: EngineCoreProc) -> dict[str, Any] | None:
    """Take the core's snapshot; None when the engine has another scheduler than ours."""
    if not isinstance(core.scheduler, AgentScheduler):
        return None
    # The keys of JSON are text, and so are those that vLLM's messages take for granted.
    return {**make_snapshot(core.scheduler).model_dump(mode="json"), "engine": core.engine_index}


def _read_lambda(evictor: Evictor | None) -> float | None:
    ordering = evictor.inner if isinstance(evictor, PinnedEvictor) else evictor
    return getattr(ordering, "lambda_value", None)


def _count_blocks(scheduler: AgentScheduler) -> BlockCounts:
    pool = scheduler.kv_cache_manager.block_pool
    # One block is vLLM's placeholder.
    total, free = pool.num_gpu_blocks - 1, pool.get_num_free_blocks()
    return BlockCounts(total=total, used=total - free, free=free, tokens_per_block=scheduler.block_size)


def _count_requests(scheduler: AgentScheduler) -> RequestCounts:
    running, waiting = scheduler.get_request_counts()
    rows = scheduler.gap_filler.count_running() if scheduler.gap_filler is not None else 0
    return RequestCounts(running=running - rows, waiting=waiting)
