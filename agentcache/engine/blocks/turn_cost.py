"""What it takes to compute again what a turn has left in the cache, and to serve a request."""

from __future__ import annotations

from dataclasses import dataclass

from agentcache.engine.jobs.request_state import RequestState
from agentcache.engine.vllm.types import Request
from agentcache.policy.return_price import BlockPrice


@dataclass(frozen=True, slots=True)
class TurnCost:
    """Seconds of prefill. `recompute_cost` is that of a block of `block_size` tokens; the cache has `num_blocks`."""

    recompute_cost: BlockPrice
    block_size: int
    num_blocks: int

    def of_end(self, tokens: int, blocks: float) -> float:
        """Return what the last blocks of so many tokens cost: what other requests share with them is the beginning."""
        return blocks * self.recompute_cost.at(tokens - blocks * self.block_size / 2)

    def of_whole(self, tokens: int) -> float:
        """Return what all full blocks of so many tokens cost."""
        return self.of_end(tokens, tokens // self.block_size)

    def of_lost(self, state: RequestState) -> float:
        """Return the cost of what the turn before had left and is gone: the end of what is shared with it."""
        return self.of_end(state.overlap.shared_tokens, state.lost_tokens / self.block_size)

    def share(self, blocks: int) -> float:
        """Return the share of the cache that so many blocks are."""
        return blocks / self.num_blocks


@dataclass(frozen=True, slots=True)
class RequestCost:
    """Prices requests in seconds: the prefill as `prefill` says, each token of the reply by `step_s`."""

    prefill: TurnCost
    step_s: float

    def find(self, request: Request, kept_tokens: int) -> float:
        """Return the most that the request takes, served alone, of which so many tokens are cached."""
        computed_blocks = (request.num_tokens - kept_tokens) / self.prefill.block_size
        return self.prefill.of_end(request.num_tokens, computed_blocks) + request.max_tokens * self.step_s
