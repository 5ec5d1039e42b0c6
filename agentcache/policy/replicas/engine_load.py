"""Estimates what waits and runs at one engine, by the requests sent to it, and how far its CPU cache reaches."""

from __future__ import annotations

from dataclasses import dataclass

from agentcache.policy.price import RecomputeCost


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Seconds of prefill; `recompute_cost` is that of a block of `block_tokens` tokens."""

    recompute_cost: RecomputeCost
    block_tokens: int

    def of(self, tokens: int, hit_tokens: int = 0) -> float:
        """Return what computing the tokens behind the cached ones takes, in an engine that does nothing else."""
        computed = max(0, tokens - hit_tokens)
        return computed / self.block_tokens * self.recompute_cost.at(tokens - computed / 2)


class EngineLoad:
    """Requests that wait for their first token, by what they must compute, and live jobs, by their tokens.

    `capacity_tokens` is what the engine's cache holds.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self.queued_s = 0.0
        """Seconds of prefill that wait or run."""
        self.live_tokens = 0
        """The tokens of the jobs that live here."""
        self._queued: dict[str, float] = {}
        self._jobs: dict[str, int] = {}

    @property
    def jobs(self) -> int:
        """How many jobs live here."""
        return len(self._jobs)

    @property
    def crowding(self) -> float:
        """How many times the cache would be full with all jobs that live here."""
        return self.live_tokens / self.capacity_tokens

    def has_room(self, tokens: int) -> bool:
        """Tell whether all that lives here and these tokens fit into the cache."""
        return self.live_tokens + tokens <= self.capacity_tokens

    def queue(self, request: str, prefill_s: float) -> None:
        """Note a request that has been sent."""
        self._queued[request] = prefill_s
        self.queued_s += prefill_s

    def computed(self, request: str) -> None:
        """Note that a request has its first token, or is gone. May be told again."""
        self.queued_s -= self._queued.pop(request, 0.0)
        if not self._queued:
            # What rounding has left.
            self.queued_s = 0.0

    def settle(self, job: str, tokens: int) -> None:
        """Note that a job lives here with so many tokens."""
        self.live_tokens += tokens - self._jobs.get(job, 0)
        self._jobs[job] = tokens

    def leave(self, job: str) -> None:
        """Note that a job is over, or lives elsewhere. May be told again."""
        self.live_tokens -= self._jobs.pop(job, 0)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """A CPU cache for `tokens` tokens, each of which is back on the GPU after `load_s` seconds.

    It takes what the GPU's cache evicts. Without tokens there is none.
    """

    tokens: int = 0
    load_s: float = 0.0

    def lost_share(self, cache_tokens: int) -> float:
        """Return which share is computed again of what a full cache of the GPU, of so many tokens, evicts."""
        return cache_tokens / (cache_tokens + self.tokens)
