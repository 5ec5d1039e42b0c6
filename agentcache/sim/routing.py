"""Routes requests to one of several simulated engines: as vLLM and routers choose, and as agentcache does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from agentcache.engine.rpc.core_calls import release
from agentcache.policy.replicas.chain import Chain, KnownBlocks
from agentcache.policy.replicas.engine_load import HostMemory, PrefillCost
from agentcache.policy.replicas.placement import Placement, SpillRule
from agentcache.sim.delays import find_links
from agentcache.sim.engine import SimulatedEngine


class LeftBehind:
    """Judges what an engine has by what was sent there, as the placement of an API server does."""

    def __init__(self, engines: Sequence[SimulatedEngine]) -> None:
        first = engines[0]
        self._block_tokens = first.block_size
        kept_blocks = (first.cache_tokens + first.host_tokens) // first.block_size
        self._known = [KnownBlocks(kept_blocks) for _ in engines]
        # Engines of jobs, and of requests under way.
        self._homes: dict[str, int] = {}
        self._open: dict[str, tuple[int, Chain]] = {}

    def send(self, request: str, prompt: Sequence[int], job: str, engine: int) -> int:
        """Note a request, and return the tokens of its prompt at the engine that its job leaves; 0 if it stays."""
        chain = Chain(prompt, self._block_tokens)
        home = self._homes.get(job, engine)
        left_blocks = 0 if home == engine else self._known[home].count_hits(chain.hashes)
        self._homes[job] = engine
        self._known[engine].use(chain.hashes)
        self._open[request] = engine, chain
        return left_blocks * self._block_tokens

    def finished(self, request: str, reply: Sequence[int]) -> None:
        """Note that the engine has a request's reply as well."""
        engine, chain = self._open.pop(request)
        chain.extend(reply)
        self._known[engine].use(chain.hashes)

    def ended(self, job: str) -> None:
        """Forget a job that is over."""
        self._homes.pop(job, None)


class Choice(NamedTuple):
    """The number of an engine, and how many of the prompt's tokens the one has that the job leaves for it."""

    engine: int
    left_tokens: int = 0


class Routing:
    """Chooses for every request, and is told what becomes of it. This one sends all to the first engine."""

    def choose(self, request: str, prompt: Sequence[int], job: str) -> Choice:  # noqa: ARG002
        """Return the engine, and what the job leaves behind."""
        return Choice(0)

    def got_token(self, request: str) -> None:
        """Note that a request has its first token."""

    def finished(self, request: str, reply: Sequence[int], *, answered: bool) -> None:
        """Note that a request is over, and whether its reply calls no tool."""

    def ended(self, job: str) -> None:
        """Note that a job is over."""


class LeastLoaded(Routing):
    """As vLLM's data-parallel balancer, with exact counts where that has those of up to 100 ms ago.

    See `DPLBAsyncMPClient.get_core_engine_for_request`.
    """

    def __init__(self, engines: Sequence[SimulatedEngine]) -> None:
        self._engines = engines
        self._first = 0
        self._left = LeftBehind(engines)

    def choose(self, request: str, prompt: Sequence[int], job: str) -> Choice:
        """Return the engine with the least requests; waiting ones count more in a full cache."""
        count = len(self._engines)
        order = [(self._first + step) % count for step in range(count)]
        self._first = (self._first + 1) % count
        engine = min(order, key=self._score)
        return Choice(engine, self._left.send(request, prompt, job, engine))

    def finished(self, request: str, reply: Sequence[int], *, answered: bool) -> None:  # noqa: ARG002
        """Note that a request is over."""
        self._left.finished(request, reply)

    def ended(self, job: str) -> None:
        """Forget the job."""
        self._left.ended(job)

    def _score(self, number: int) -> float:
        scheduler = self._engines[number].scheduler
        running, waiting = scheduler.get_request_counts()
        return running + waiting * (1 + 6 * max(0.0, scheduler.kv_cache_manager.usage - 0.5))


class Sticky(Routing):
    """A new session goes to the engine with the least sessions and stays: `sticky_least_loaded` of vllm-router.

    The router hears of the end of every session.
    """

    def __init__(self, engines: Sequence[SimulatedEngine]) -> None:
        self._engines = range(len(engines))
        self._homes: dict[str, int] = {}

    def choose(self, request: str, prompt: Sequence[int], job: str) -> Choice:  # noqa: ARG002
        """Return the session's engine."""
        if job not in self._homes:
            sessions = Counter(self._homes.values())
            self._homes[job] = min(self._engines, key=lambda engine: sessions[engine])
        return Choice(self._homes[job])

    def ended(self, job: str) -> None:
        """Free the session's place."""
        del self._homes[job]


class ByCost(Routing):
    """As our API server chooses: told of replies without a tool call, not of the end of jobs."""

    def __init__(self, engines: Sequence[SimulatedEngine]) -> None:
        first = engines[0]
        self._engines = engines
        self._clock = first.clock
        self.placement = Placement(
            len(engines),
            capacity_tokens=first.cache_tokens,
            prefill_cost=PrefillCost(first.recompute_cost, first.block_size),
            spill=SpillRule(factor=first.scheduler.config.replicas.spill_factor),
            host=_find_host_memory(first),
        )

    def choose(self, request: str, prompt: Sequence[int], job: str) -> Choice:
        """Return the turn's engine, and release what the job leaves behind."""
        chain = Chain(prompt, self.placement.block_tokens)
        placed = self.placement.place(request, chain, self._clock.now(), job=job)
        if placed.moved_from is not None and (tracker := self._engines[placed.moved_from].scheduler.tracker):
            release(tracker, job)
        return Choice(placed.engine, placed.left_tokens)

    def got_token(self, request: str) -> None:
        """Note that a request has its first token."""
        self.placement.got_token(request)

    def finished(self, request: str, reply: Sequence[int], *, answered: bool) -> None:
        """Note that a request is over."""
        self.placement.finished(request, reply, self._clock.now(), answered=answered)


def _find_host_memory(engine: SimulatedEngine) -> HostMemory:
    if not engine.has_host_cache:
        return HostMemory()
    block_s = find_links(engine.scheduler).fetch.block_s
    return HostMemory(engine.host_tokens, block_s / engine.block_size)


def make_routing(name: str, engines: Sequence[SimulatedEngine]) -> Routing:
    """Make the routing of that name."""
    match name:
        case "agentcache":
            return ByCost(engines)
        case "least-loaded":
            return LeastLoaded(engines)
        case _:
            return Sticky(engines)
