"""How likely a block is used again, from how long it has been idle."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentcache.errors import InputError

# agentcache/tuning.py says where they come from.
DEFAULT_REUSE_PROBABILITY = 0.5
DEFAULT_SLOPE_RATIO = 40.0


@dataclass(frozen=True, slots=True)
class Frequency:
    """Two exponentials: a slow one within the lifespan, a steep one after it.

    Both are exponential because only then do two blocks keep their order as time passes, so that a heap can hold them.
    """

    alpha_s: float
    beta_s: float
    tau0_s: float

    @classmethod
    def from_turning_point(
        cls,
        lifespan_s: float,
        reuse_probability: float = DEFAULT_REUSE_PROBABILITY,
        slope_ratio: float = DEFAULT_SLOPE_RATIO,
    ) -> Frequency:
        """Make the curve that turns at `lifespan_s`: `reuse_probability` there, `slope_ratio` times as steep after.

        Raises InputError for values that leave no such curve.
        """
        if not 0 < lifespan_s < math.inf:
            raise InputError(f"lifespan_s {lifespan_s}: must be a positive number of seconds")
        if not 0 < reuse_probability < 1:
            raise InputError(f"reuse_probability {reuse_probability}: must lie between 0 and 1, both excluded")
        if not 1 < slope_ratio < math.inf:
            raise InputError(f"slope_ratio {slope_ratio}: must be greater than 1")
        alpha_s = -lifespan_s / math.log(reuse_probability)
        return cls(alpha_s, alpha_s / slope_ratio, lifespan_s * (1 - 1 / slope_ratio))
