"""What a policy may make its evictor of."""

from __future__ import annotations

from dataclasses import dataclass

from agentcache.policy.cost import LossCost
from agentcache.policy.frequency import Frequency
from agentcache.policy.grouped import Learning
from agentcache.policy.lifespan import LambdaBounds


@dataclass(frozen=True, slots=True)
class EvictorInputs:
    """The cache's size in blocks, the cost of losing one, and how its reuse depends on time."""

    num_blocks: int
    loss: LossCost
    frequency: Frequency
    lifespan_window: int
    lambda_bounds: LambdaBounds
    learning: Learning
