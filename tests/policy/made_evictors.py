"""Every evictor, with parameters of a size that serving has."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from agentcache._evictor import (
    AsymCacheEvictor,
    AsymCacheLinearEvictor,
    Evictor,
    LruEvictor,
    MaxScoreEvictor,
    PensieveEvictor,
    PinnedEvictor,
    ReturnTimeEvictor,
    ReturnWaits,
)
from agentcache.policy.registry import LEAST_WAIT_S

# Lifespan 10 s, reuse probability 0.5, slope ratio 40.
FREQUENCY: dict[str, Any] = {"alpha_s": 10 / math.log(2), "beta_s": 10 / math.log(2) / 40, "tau0_s": 9.75}
COST: dict[str, Any] = {"slope_s": 1e-9, "base_s": 2e-5, "floor_s": 1e-7}
SAME_COST: dict[str, Any] = {"slope_s": 0.0, "base_s": 2e-5, "floor_s": 1e-7}


def make_waits() -> ReturnWaits:
    return ReturnWaits(least_wait_s=LEAST_WAIT_S)


MakeEvictor = Callable[[int], Evictor]

EVICTORS: dict[str, MakeEvictor] = {
    "lru": lambda _: LruEvictor(),
    "asymcache": lambda blocks: AsymCacheEvictor(num_blocks=blocks, **FREQUENCY, **COST),
    "asymcache-linear": lambda blocks: AsymCacheLinearEvictor(num_blocks=blocks, **FREQUENCY, **COST),
    "agentcache": lambda blocks: ReturnTimeEvictor(num_blocks=blocks, **COST, waits=make_waits()),
    "max-score": lambda blocks: MaxScoreEvictor(num_blocks=blocks, **FREQUENCY),
    "pensieve": lambda blocks: PensieveEvictor(num_blocks=blocks, **COST),
    "lru, pinned": lambda blocks: PinnedEvictor(LruEvictor(), num_blocks=blocks, cheapest_first=False),
    "asymcache, pinned": lambda blocks: PinnedEvictor(
        AsymCacheEvictor(num_blocks=blocks, **FREQUENCY, **COST), num_blocks=blocks, cheapest_first=True
    ),
    "agentcache, pinned": lambda blocks: PinnedEvictor(
        ReturnTimeEvictor(num_blocks=blocks, **COST, waits=make_waits()), num_blocks=blocks, cheapest_first=True
    ),
}
# LRU takes any id.
SIZED = {name: make for name, make in EVICTORS.items() if name != "lru"}
