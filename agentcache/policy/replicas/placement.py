"""Decides which engine gets a turn: its job's home, or, for a new job, one where few jobs live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentcache.policy.replicas.chain import Chain, KnownBlocks
from agentcache.policy.replicas.engine_load import EngineLoad, HostMemory, PrefillCost
from agentcache.policy.replicas.job_homes import JobHome, JobHomes, LiveJobs
from tool_runtime.learning.job_blocks import ChainOwners

Reason = Literal["new", "home", "cheaper"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillRule:
    """When a job leaves its home: it has not moved before, and its turn costs `factor` times as much there.

    The other engine's cache must have room for the job beside all that lives there: else it waits there behind pins. A
    job lives until it has been idle for far longer than jobs are between two turns, at most `live_s` seconds.
    """

    factor: float = 3.0
    # Assumed.
    live_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Placed:
    """`moved_from` is the engine that the job has left, whose KV of it is of no more use.

    `left_tokens` are those of the prompt that are probably cached there.
    """

    engine: int
    job: str
    reason: Reason
    moved_from: int | None = None
    left_tokens: int = 0


@dataclass(slots=True)
class _OpenRequest:
    engine: int
    home: JobHome
    chain: Chain
    prompt_tokens: int


class Placement:
    """Follows every request of a front end. Costs O(blocks of the request + engines × log blocks) when it comes.

    Clocks are seconds that do not go back. Engines have numbers from 0, and `capacity_tokens` each in their cache, with
    `host` behind it. A new job's may have `(1 + extra_jobs)` times as many live jobs as the one with the fewest.
    """

    def __init__(
        self,
        engines: int,
        *,
        capacity_tokens: int,
        prefill_cost: PrefillCost,
        # Chosen: 32 simulated runs of Claude Code sessions.
        extra_jobs: float = 0.5,
        spill: SpillRule | None = None,
        host: HostMemory | None = None,
        max_jobs: int = 10_000,
    ) -> None:
        self.block_tokens = prefill_cost.block_tokens
        self.placed: dict[Reason, int] = {}
        """Requests by the reason of their placement."""
        self.loads = [EngineLoad(capacity_tokens) for _ in range(engines)]
        """What waits and lives at each engine, by its number."""
        self._cost = prefill_cost
        self._extra_jobs = extra_jobs
        self._spill = spill or SpillRule()
        self._host = host or HostMemory()
        self._known = [KnownBlocks(capacity_tokens // self.block_tokens) for _ in range(engines)]
        # Beside it, the same and what only the CPU cache has.
        kept_blocks = (capacity_tokens + self._host.tokens) // self.block_tokens
        self._kept = [KnownBlocks(kept_blocks) for _ in range(engines)] if self._host.tokens else self._known
        self._owners = ChainOwners()
        self._homes = JobHomes(max_jobs)
        self._live = LiveJobs(self._spill.live_s)
        self._open: dict[str, _OpenRequest] = {}

    def place(self, request: str, chain: Chain, now_s: float, *, job: str | None = None) -> Placed:
        """Choose the engine of a request with this prompt. `job` None: its client names none, so the chain tells."""
        for idle in self._live.pop_idle(now_s):
            self.loads[idle.engine].leave(idle.job)
        if job is None:
            owner = self._owners.find(chain.hashes)
            job = request if owner is None else owner.session
        home = self._homes.find(job)
        if home is not None:
            self._learn_return(home, now_s)
        engine, reason = self._choose(home, chain)
        moved_from, left_tokens = None, 0
        if home is None:
            home = JobHome(job, engine, now_s)
        elif home.engine != engine:
            moved_from, home.engine, home.moves = home.engine, engine, home.moves + 1
            self.loads[moved_from].leave(job)
            left_tokens = self._kept[moved_from].count_hits(chain.hashes) * self.block_tokens
        if reason != "home":
            home.reason = reason
        self._begin(request, home, chain, now_s)
        self.placed[reason] = self.placed.get(reason, 0) + 1
        return Placed(engine, job, reason, moved_from, left_tokens)

    def got_token(self, request: str) -> None:
        """Note a request's first token. May be told again, and of requests that were not placed here."""
        if (open_request := self._open.get(request)) is not None:
            self.loads[open_request.engine].computed(request)

    def finished(self, request: str, reply: Sequence[int], now_s: float, *, answered: bool = False) -> None:
        """Note that a request is over, with the tokens that it got. `answered`: whole, and they call no tool."""
        over = self._open.pop(request, None)
        if over is None:
            return
        home, chain = over.home, over.chain
        home.open -= 1
        self.loads[over.engine].computed(request)
        chain.extend(reply)
        if self._homes.find(home.job) is not home:
            return
        self._use(over.engine, chain)
        self._owners.note(chain.hashes, over.prompt_tokens, self.block_tokens, session=home.job, request=request)
        home.answered = answered and not home.open
        if home.answered:
            self._live.learn_answer()
        if home.answered and not self._live.go_on:
            self._homes.touch(home, now_s)
            self._leave(home)
        else:
            self._settle(home, chain.tokens, now_s)

    def end_job(self, job: str) -> bool:
        """Forget a job that is over. Return False if it is not known."""
        home = self._homes.find(job)
        if home is None:
            return False
        self._homes.forget(job)
        self._leave(home)
        self._owners.forget(job)
        return True

    def find(self, job: str) -> JobHome | None:
        """Find where a job lives."""
        return self._homes.find(job)

    def _choose(self, home: JobHome | None, chain: Chain) -> tuple[int, Reason]:
        engines = range(len(self.loads))
        if home is None:
            return self._choose_home(engines, chain), "new"
        if home.moves or home.open:
            return home.engine, "home"
        roomy = [each for each in engines if each != home.engine and self.loads[each].has_room(chain.tokens)]
        if not roomy:
            return home.engine, "home"
        stay_s = self._cost_at(home.engine, chain, self._prefill_s(home.engine, chain), comes=False)
        costs_s = {each: self._cost_at(each, chain, self._prefill_s(each, chain), comes=True) for each in roomy}
        cheapest = min(roomy, key=costs_s.__getitem__)
        moves = stay_s > self._spill.factor * costs_s[cheapest]
        return (cheapest, "cheaper") if moves else (home.engine, "home")

    def _choose_home(self, engines: Sequence[int], chain: Chain) -> int:
        """Return an engine with few live jobs: that which has most of the prompt; of several, the least loaded.

        What jobs share is computed and kept once an engine. But a first prompt says little of what its job will be: the
        seconds of its prefill alone would draw all jobs with one system prompt to the few engines that have it.
        """
        most = (1 + self._extra_jobs) * min(self.loads[engine].jobs for engine in engines)
        prefills_s = {each: self._prefill_s(each, chain) for each in engines if self.loads[each].jobs <= most}
        least_s = min(prefills_s.values())
        tied = [engine for engine, prefill_s in prefills_s.items() if prefill_s == least_s]
        return min(tied, key=lambda each: (self.loads[each].jobs, self._cost_at(each, chain, least_s, comes=True)))

    def _cost_at(self, engine: int, chain: Chain, prefill_s: float, *, comes: bool) -> float:
        """Return the seconds until the first token, and what sharing the cache will cost.

        A job that shares a cache with jobs that would fill it x times needs its context again about x times more, from
        the CPU cache as far as that has it.
        """
        load = self.loads[engine]
        crowding = load.crowding + (chain.tokens / load.capacity_tokens if comes else 0.0)
        whole_s = self._cost.of(chain.tokens)
        lost = crowding * self._host.lost_share(load.capacity_tokens)
        again_s = lost * whole_s + (crowding - lost) * min(whole_s, chain.tokens * self._host.load_s)
        return load.queued_s + prefill_s + again_s

    def _prefill_s(self, engine: int, chain: Chain) -> float:
        """Return the seconds of a turn's prefill. What the CPU cache has is loaded where that takes less time."""
        hit_tokens = self._known[engine].count_hits(chain.hashes) * self.block_tokens
        compute_s = self._cost.of(chain.tokens, hit_tokens)
        kept_tokens = self._kept[engine].count_hits(chain.hashes) * self.block_tokens
        if kept_tokens <= hit_tokens:
            return compute_s
        load_s = (kept_tokens - hit_tokens) * self._host.load_s
        return min(compute_s, load_s + self._cost.of(chain.tokens, kept_tokens))

    def _use(self, engine: int, chain: Chain) -> None:
        self._known[engine].use(chain.hashes)
        if self._host.tokens:
            self._kept[engine].use(chain.hashes)

    def _learn_return(self, home: JobHome, now_s: float) -> None:
        if not home.open:
            self._live.learn_pause(now_s - home.last_active_s)
        if home.answered:
            home.answered = False
            self._live.learn_return()

    def _begin(self, request: str, home: JobHome, chain: Chain, now_s: float) -> None:
        self.loads[home.engine].queue(request, self._prefill_s(home.engine, chain))
        self._use(home.engine, chain)
        home.open += 1
        self._open[request] = _OpenRequest(home.engine, home, chain, chain.tokens)
        self._settle(home, chain.tokens, now_s)
        if (surplus := self._homes.pop_surplus()) is not None:
            self._leave(surplus)
            self._owners.forget(surplus.job)

    def _settle(self, home: JobHome, tokens: int, now_s: float) -> None:
        self._homes.touch(home, now_s)
        self.loads[home.engine].settle(home.job, tokens)
        self._live.touch(home)

    def _leave(self, home: JobHome) -> None:
        self._live.leave(home.job)
        self.loads[home.engine].leave(home.job)
