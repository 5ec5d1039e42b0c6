"""What evictors are made from, made up."""

from __future__ import annotations

from agentcache.policy.lifespan import Frequency, LifespanEstimator
from agentcache.policy.price import RecomputeCost
from agentcache.policy.registry import EvictorInputs


def make_inputs(num_blocks: int) -> EvictorInputs:
    return EvictorInputs(
        num_blocks=num_blocks,
        recompute_cost=RecomputeCost(slope_s=1e-9, base_s=2e-5, floor_s=1e-7),
        step_s=0.01,
        frequency=Frequency(alpha_s=14.0, beta_s=0.35, tau0_s=9.75),
        lifespan=LifespanEstimator(window=10),
        lambda_limit=1e6,
    )
