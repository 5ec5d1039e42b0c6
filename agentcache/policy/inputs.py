"""What a policy may make its evictor of."""

from __future__ import annotations

from dataclasses import dataclass

from agentcache.policy.cost import RecomputeCost
from agentcache.policy.frequency import Frequency
from agentcache.policy.lifespan import LambdaBounds


@dataclass(frozen=True, slots=True)
class Learning:
    """How the return-time evictor learns the waits between a request and the next that uses its blocks.

    After `window` requests all that was observed counts for half. `prior_returns` is the weight of what is assumed
    (agentcache/tuning.py). `least_wait_s` is added to every wait: differences far below it do not count.
    """

    # Window and wait were chosen with the evictor's other settings, on 32 of the sessions of
    # docs/results/coding-sessions.md and BFCL seeds 0 to 2. Which others were tried was not written down.
    window: int = 4000
    prior_returns: float = 0.1
    least_wait_s: float = 1.0


@dataclass(frozen=True, slots=True)
class EvictorInputs:
    """The cache's size in blocks, the cost of losing one, and how its reuse depends on time.

    `step_s` are the seconds of a step with one token: what each token of a reply takes, alone on the engine.
    `fills_gaps`: whether blocks behind a lost one can be used still.
    """

    num_blocks: int
    recompute_cost: RecomputeCost
    step_s: float
    frequency: Frequency
    lifespan_window: int
    lambda_bounds: LambdaBounds
    learning: Learning
    fills_gaps: bool = True

    @property
    def compared_recompute_cost(self) -> RecomputeCost:
        """The cost as evictors are to know it.

        Where gaps are not filled, the cheapest block of a request, its first, would take all behind it along. So all
        cost the same, and of a request the last goes first.
        """
        return (
            self.recompute_cost
            if self.fills_gaps
            else RecomputeCost(slope_s=0.0, base_s=0.0, floor_s=self.recompute_cost.floor_s)
        )
