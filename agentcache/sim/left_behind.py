"""What jobs leave behind at an engine when a balancer that follows none of them sends them to another."""

from __future__ import annotations

from collections.abc import Sequence

from agentcache.policy.replicas.chain import Chain
from agentcache.policy.replicas.known_blocks import KnownBlocks
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
