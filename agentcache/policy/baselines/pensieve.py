"""Baseline: recomputation cost over the time since the last use, as in Pensieve."""

from __future__ import annotations

from agentcache import _evictor
from agentcache.policy.compiled import CompiledEvictor


class PensieveEvictor(CompiledEvictor):
    """Score of a block at position n, idle for τ: factor·max(floor, slope·n + base)/τ. O(n) per call of `evict`.

    Idle times below a millisecond count as one.
    """

    def __init__(self, *, num_blocks: int, slope_s: float, base_s: float, floor_s: float) -> None:
        super().__init__(
            _evictor.PensieveEvictor(num_blocks=num_blocks, slope_s=slope_s, base_s=base_s, floor_s=floor_s)
        )
