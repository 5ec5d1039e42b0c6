"""Runs a closed loop: a fixed number of lanes, each of which begins the next session when its last has ended."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentcache.jobs.context_job import ContextJob, ContextWriter
from tool_runtime.agent.job import Context
from workloads.recording.plays import SessionPlays

# While no request is under way, all that is planned is brought forward so that the next comes within this time.
IDLE_CAP_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """What every policy's lanes do. `sessions` are those that `plays` gives again and again.

    A run is measured for `duration_s` seconds, from when each lane has had its `warm_up` requests on.
    """

    sessions: Sequence[ContextJob]
    plays: SessionPlays
    writer: ContextWriter
    lanes: int
    duration_s: float
    warm_up: int
    # Where runs follow one another at a server that keeps its cache: what it would hold without evictions.
    kept_cache: InfiniteCache | None = None

    def with_lanes(self, lanes: int, *, copy: int, kept_cache: InfiniteCache | None) -> ClosedLoop:
        """Return the same loop with so many lanes, and that `copy` of the plays."""
        return replace(self, lanes=lanes, plays=self.plays.take_copy(copy), kept_cache=kept_cache)

    def begin(self) -> Lanes:
        """Begin anew: the n-th session to begin is the same under every policy."""
        return Lanes(self)


class Lanes:
    """Follows one policy's run: every request and session that ends, in seconds since the run began."""

    def __init__(self, loop: ClosedLoop) -> None:
        self._loop = loop
        self._numbers = itertools.count()
        # Of the lanes that are not warm yet, by their session: requests to go.
        self._warming: dict[str, int] = {}
        self._window_s: tuple[float, float] | None = None
        self.infinite_cache = loop.kept_cache or InfiniteCache()

    def start(self) -> list[ContextJob]:
        """Return each lane's first session, which is under way already."""
        midway = [
            self._loop.plays.play_midway(next(self._numbers), self._loop.warm_up) for _ in range(self._loop.lanes)
        ]
        self._warming = {each.job.id: each.warm_up for each in midway if each.warm_up}
        if not self._warming:
            self._open_window(0.0)
        return [ContextJob(each.job, self._loop.writer) for each in midway]

    def follow(self) -> ContextJob:
        """Return the session of a lane whose last one has ended."""
        return ContextJob(self._loop.plays.play(next(self._numbers)), self._loop.writer)

    @property
    def window_s(self) -> tuple[float, float] | None:
        """Return when measuring begins and ends; None while lanes are not warm."""
        return self._window_s

    def is_measured(self, now_s: float) -> bool:
        """Tell whether the time to measure is over."""
        return self._window_s is not None and now_s > self._window_s[1]

    def break_off(self, now_s: float) -> None:
        """End the time to measure at `now_s`, unless it is over; None is left of it if it has not begun by then."""
        if self._window_s is not None:
            begin_s, end_s = self._window_s
            self._window_s = (begin_s, min(now_s, end_s)) if now_s > begin_s else None

    def request_ended(self, job_id: str, now_s: float) -> None:
        """Count a request of a lane that is not warm yet."""
        if job_id in self._warming:
            self._warming[job_id] -= 1
            if not self._warming[job_id]:
                self._warmed(job_id, now_s)

    def session_ended(self, job_id: str, now_s: float) -> None:
        """Take a lane for warm whose session failed before."""
        if job_id in self._warming:
            self._warmed(job_id, now_s)

    def _warmed(self, job_id: str, now_s: float) -> None:
        del self._warming[job_id]
        if not self._warming:
            self._open_window(now_s)

    def _open_window(self, now_s: float) -> None:
        self._window_s = (now_s, now_s + self._loop.duration_s)


class InfiniteCache:
    """What a cache without evictions would hold: the full blocks of every prompt so far, whosever they were."""

    def __init__(self) -> None:
        self._blocks: set[int] = set()

    def count_hits(self, context: Context) -> int:
        """Count the tokens that the prompt finds; the last of a prompt is always computed. Then keep its blocks."""
        full = context.blocks[: context.tokens // context.block_tokens]
        found = sum(1 for _ in itertools.takewhile(self._blocks.__contains__, full))
        self._blocks.update(full)
        return min(found * context.block_tokens, context.tokens - 1)
