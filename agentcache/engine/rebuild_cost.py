"""What it takes to compute again what a turn has left in the cache."""

from __future__ import annotations

from dataclasses import dataclass

from agentcache.engine.visits import Visit
from agentcache.policy.cost import LossCost


@dataclass(frozen=True, slots=True)
class RebuildCost:
    """Seconds of prefill. `loss` is what losing a block of `block_size` tokens costs; the cache has `num_blocks`."""

    loss: LossCost
    block_size: int
    num_blocks: int

    def of_end(self, tokens: int, blocks: float) -> float:
        """For the last blocks of so many tokens: what other requests share with them is the beginning."""
        return blocks * self.loss.at(tokens - blocks * self.block_size / 2)

    def of_whole(self, tokens: int) -> float:
        return self.of_end(tokens, tokens // self.block_size)

    def of_lost(self, visit: Visit) -> float:
        """For what the turn before had left and is gone: the end of what is shared with it."""
        return self.of_end(visit.overlap.shared_tokens, visit.lost_tokens / self.block_size)

    def share(self, blocks: int) -> float:
        """Of the cache."""
        return blocks / self.num_blocks
