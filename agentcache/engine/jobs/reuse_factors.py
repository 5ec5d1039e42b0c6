"""Correction factors: how much likelier than any turn this one is to be continued, by what its tool's gaps taught."""

from __future__ import annotations

from agentcache._evictor import Evictor
from agentcache.policy.lifespan import LifespanEstimator
from tool_runtime.learning.runtime import AgentRuntime
from tool_runtime.learning.tool_key import ToolKey


class ReuseFactors:
    """Feeds gaps and correction factors to an evictor that takes them.

    `reuse_probability` is at the evictor's lifespan.
    """

    def __init__(
        self, evictor: Evictor, runtime: AgentRuntime, *, lifespan_window: int, reuse_probability: float
    ) -> None:
        self._evictor = evictor
        self._runtime = runtime
        self._lifespan = LifespanEstimator(lifespan_window)
        self._reuse_probability = reuse_probability

    def observe(self, gap_s: float) -> None:
        """Learn that a job has come back."""
        self._lifespan.observe(gap_s)
        self._evictor.observe_reuse(gap_s)

    def find(self, key: ToolKey) -> float:
        """Find the factor of a turn that waits for these calls."""
        return self._runtime.correction_factor(key, self._lifespan.mean_s, self._reuse_probability)
