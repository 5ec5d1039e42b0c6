"""The paper's evictor without its heaps: what they are measured and checked against."""

from __future__ import annotations

from agentcache import _evictor
from agentcache.policy.asymcache import AsymCacheEvictor


class AsymCacheLinearEvictor(AsymCacheEvictor):
    """The same victims as AsymCacheEvictor, by a scan of all blocks for each. O(n) per block."""

    kind = _evictor.AsymCacheLinearEvictor
