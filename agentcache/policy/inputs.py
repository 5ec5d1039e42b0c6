"""What a policy may make its evictor of."""

from __future__ import annotations

from dataclasses import dataclass

from agentcache.policy.cost import LossCost
from agentcache.policy.frequency import Frequency
from agentcache.policy.grouped import Learning
from agentcache.policy.lifespan import LambdaBounds


@dataclass(frozen=True, slots=True)
class EvictorInputs:
    """The cache's size in blocks, the cost of losing one, and how its reuse depends on time.

    `fills_gaps`: whether blocks behind a lost one can be used still.
    """

    num_blocks: int
    loss: LossCost
    frequency: Frequency
    lifespan_window: int
    lambda_bounds: LambdaBounds
    learning: Learning
    fills_gaps: bool = True

    @property
    def compared_loss(self) -> LossCost:
        """What evictors are to know of the cost.

        Where gaps are not filled, the cheapest block of a request, its first, would take all behind it along. So all
        cost the same, and of a request the last goes first.
        """
        return self.loss if self.fills_gaps else LossCost(slope_s=0.0, base_s=0.0, floor_s=self.loss.floor_s)
