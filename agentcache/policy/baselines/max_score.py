"""Baseline: the block that is least likely to be used again goes first, whatever it costs."""

from __future__ import annotations

from agentcache import _evictor
from agentcache.policy.compiled import CompiledEvictor


class MaxScoreEvictor(CompiledEvictor):
    """Score of a block that has been idle for τ: factor·min(exp(−τ/α), exp(−(τ−τ₀)/β)). O(n) per call of `evict`."""

    def __init__(self, *, num_blocks: int, alpha_s: float, beta_s: float, tau0_s: float) -> None:
        super().__init__(_evictor.MaxScoreEvictor(num_blocks=num_blocks, alpha_s=alpha_s, beta_s=beta_s, tau0_s=tau0_s))
