"""An engine made up for tests of the routes: its counts, its jobs, and a core that answers by them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI
from starlette.testclient import TestClient

from agentcache.engine.blocks.block_queue import Evictions
from agentcache.engine.constants import EXPIRED_METHOD, JOBS_METHOD, RELEASE_METHOD
from agentcache.engine.job_summary import JobSummary
from agentcache.engine.rpc.snapshot import (
    SNAPSHOT_METHOD,
    BlockCounts,
    EngineSnapshot,
    RequestCounts,
)
from agentcache.engine.views import (
    ComparisonCounts,
    Histogram,
    JobView,
    PinCounts,
    PinView,
    RuntimeCounts,
    SegmentCounts,
    TierCounts,
    ToolCounts,
    TurnView,
)
from agentcache.server.change_text import Decode
from agentcache.server.job_reader import EngineJob, JobReader
from agentcache.server.live_report import LiveReport
from agentcache.server.routes import router
from agentcache.server.session_headers import SessionHeaders
from agentcache.server.snapshot_reader import SnapshotReader


def make_runtime(**changes: Any) -> RuntimeCounts:
    found: dict[str, Any] = {
        "jobs": 3,
        "jobs_ended": {"job over": 5, "expired": 1},
        "job_latency_s": Histogram(bounds=(1.0, 10.0), buckets=(2, 5), count=6, total=40.5),
        "answer_latency_s": Histogram(bounds=(1.0, 10.0), buckets=(3, 7), count=8, total=26.0),
        "job_turns": Histogram(bounds=(2.0, 4.0), buckets=(1, 4), count=6, total=21.0),
        "tools": {"search": ToolCounts(gaps=4, seconds=6.0), "(human)": ToolCounts(gaps=1, seconds=30.0)},
        "pins": PinCounts(
            live=2, blocks=40, budget_blocks=500, began=9, ended={"returned": 6, "job over": 1}, held_s=12.5
        ),
        "prompt_tokens": 10_000,
        "hit_tokens": 7_500,
        "recomputed_tokens": 320,
        "missed_tokens": {"new": 2000, "evicted": 400, "changed": 60, "behind a gap": 40},
        "changed_prompts": {"tools reordered": 2},
        "found_jobs": {"named": 10, "first": 4, "unmatched": 1},
        "held_turns": 7,
        "waits": {"new job": {"bounds": (1.0, 2.5), "buckets": (3, 3), "count": 3, "total": 1.5}},
    }
    return RuntimeCounts(**{**found, **changes})


def make_engine(engine: int = 0, **changes: Any) -> EngineSnapshot:
    """An engine that has everything."""
    found: dict[str, Any] = {
        "engine": engine,
        "policy": "agentcache",
        "knobs": {"segments": {"enabled": True}, "chunking": {"enabled": True}},
        "segments": SegmentCounts(requests={2: 5}, fill_tokens=640, islands_dropped=4, fallbacks={"no room": 2}),
        "segments_obstacle": None,
        "evictions": {"capacity": Evictions(blocks=8, age_s=20.0)},
        "lambda_value": 0.25,
        "prefill_budget": 512,
        "blocks": BlockCounts(total=1000, used=40, free=960, tokens_per_block=16),
        "comparison": ComparisonCounts(
            prompt_tokens=12_000, reused_tokens=7_680, lru_tokens=4_800, saved_s=3.5, lost_s=0.25
        ),
        "requests": RequestCounts(running=1, waiting=0),
        "runtime": make_runtime(),
        "observer_failures": {"misses": 0},
    }
    return EngineSnapshot(**{**found, **changes})


def make_tiered_engine(engine: int = 0) -> EngineSnapshot:
    """One with a CPU cache."""
    tier = TierCounts(
        **{"total": 100, "used": 80, "stored": 60, "overwritten": 2, "avoided": 3, "fetched": 40, "evicted": 5},
        block_bytes=1024,
        **{"failed_stores": 7, "failed_fetches": 6, "store_s": 0.5, "fetch_s": 0.25},
    )
    runtime = make_runtime(
        hits={"gpu": 7_000, "host": 500},
        evicted_from={"evicted": 240, "never chosen": 96, "not worth a copy": 64},
        waits={"fetch": Histogram(bounds=(0.1, 1.0), buckets=(3, 4), count=5, total=4.5)},
    )
    return make_engine(engine, tier=tier, runtime=runtime)


def make_turn(turn: int, arrived_s: float, **changes: Any) -> TurnView:
    """Half a second in the queue, half a second of prefill, one second of decode."""
    found: dict[str, Any] = {
        "turn": turn,
        "arrived_s": arrived_s,
        "scheduled_s": arrived_s + 0.5,
        "first_token_s": arrived_s + 1.0,
        "finished_s": arrived_s + 2.0,
        "prompt_tokens": 100,
        "cached_tokens": 64,
        "recomputed_tokens": 16,
        "output_tokens": 11,
        "tools": ("search",),
        "diverged_at": None,
        "status": "finished",
    }
    return TurnView(**{**found, **changes})


def make_job(session: str, *turns: TurnView, **changes: Any) -> JobView:
    """By default it is away: its last turn's tools run since."""
    last_s = turns[-1].finished_s if turns else 100.0
    found: dict[str, Any] = {
        "session": session,
        "now_s": last_s + 4.0,
        "arrived_s": turns[0].arrived_s if turns else last_s,
        "last_active_s": last_s,
        "turns": turns,
        "turn_count": len(turns),
        "call_count": sum(len(turn.tools) for turn in turns),
        "failure_count": 0,
        "running": 0,
        "waits_for": turns[-1].tools if turns else (),
        "is_over": False,
        "pins": (),
    }
    return JobView(**{**found, **changes})


def make_summary(**changes: Any) -> dict[str, Any]:
    """What the engine tells of a job that is over."""
    found: dict[str, Any] = {"cause": "job over", "requests": 2, "turns": 2, "latency_s": 7.0, "ttft_mean_s": 1.0}
    tokens = {"prompt_tokens": 200, "cached_tokens": 128, "output_tokens": 22, "waits_s": {"pins": 1.5}, "gpu_s": 0.25}
    return asdict(JobSummary(**{**found, **tokens, **changes}))


def on_engine(job: JobView, engine: int = 0) -> EngineJob:
    return EngineJob(engine=engine, **dict(job))


def two_turns(session: str, arrived_s: float, **changes: Any) -> JobView:
    """Two turns of 2 s each, and a tool of 3 s between them."""
    return make_job(session, make_turn(0, arrived_s), make_turn(1, arrived_s + 5.0, tools=()), **changes)


def make_pin(turn: int, began_s: float, **changes: Any) -> PinView:
    found: dict[str, Any] = {
        "turn": turn,
        "began_s": began_s,
        "expires_s": began_s + 10.0,
        "blocks": 12,
        "blocks_left": 11,
        "value_s": 0.3,
        "ended_s": None,
        "cause": None,
    }
    return PinView(**{**found, **changes})


class FakeCore:
    """Answers as vLLM's client of the engine cores does: each engine is its snapshot and its jobs, or None."""

    def __init__(self, *engines: tuple[EngineSnapshot, Sequence[JobView]] | None) -> None:
        self.engines = engines
        self.calls: list[tuple[Any, ...]] = []
        self.failure: Exception | None = None
        self.replies: dict[str, str | None] = {}
        """The sessions of replies; None of a job whose client names none."""
        self.expired: list[str] = []
        """Told once, by the first engine that follows jobs."""
        self.is_silent = False

    async def call(self, method: str, *args: Any) -> list[Any]:
        self.calls.append((method, *args))
        if self.is_silent:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure
        return [engine and self._answer(*engine, method, *args) for engine in self.engines]

    def _answer(self, snapshot: EngineSnapshot, jobs: Sequence[JobView], method: str, *args: Any) -> Any:
        if method == SNAPSHOT_METHOD:
            return snapshot.model_dump(mode="json")
        if snapshot.runtime is None:
            return None
        if method == EXPIRED_METHOD:
            told, self.expired = self.expired, []
            return told
        argument = args[0]
        its = [job for job in jobs if job.session == argument]
        if method == RELEASE_METHOD:
            of_replies = [self.replies[name] for name in [argument] if name in self.replies]
            sessions = [job.session for job in its] or of_replies
            return {"sessions": sessions, "ended": [make_summary() | {"engine": snapshot.engine} for _ in its]}
        if method == JOBS_METHOD:
            first, asked, turns = args
            latest = sorted(jobs, key=lambda job: -job.last_active_s)[first : first + asked]
            its = [job.model_copy(update={"turns": job.turns[-turns:]}) for job in latest]
        return [job.model_dump(mode="json") for job in its]


def make_app(core: FakeCore, decode: Decode | None = None) -> FastAPI:
    """Our part of the server alone. `decode` makes text of the tokens that engines tell."""
    app = FastAPI()
    app.include_router(router)
    app.add_middleware(SessionHeaders)
    app.state.agentcache_snapshots = SnapshotReader(lambda: core.call(SNAPSHOT_METHOD))
    app.state.agentcache_jobs = JobReader(core.call, decode=decode)
    app.state.agentcache_report = LiveReport(app.state.agentcache_jobs)
    return app


@contextmanager
def connect(core: FakeCore, decode: Decode | None = None) -> Iterator[TestClient]:
    with TestClient(make_app(core, decode)) as client:
        yield client
