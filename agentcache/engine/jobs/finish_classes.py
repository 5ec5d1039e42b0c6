"""Tells the evictor how requests end: in small numbers, and how much likelier than any turn each is to be continued."""

from __future__ import annotations

from agentcache._evictor import Evictor
from agentcache.policy.lifespan import LifespanEstimator
from tool_runtime.learning.runtime import AgentRuntime
from tool_runtime.learning.tool_key import KeyNumbers, ToolKey

UNKNOWN = 0
PREEMPTED = 1
OVER = 2


def number_calls() -> KeyNumbers:
    """Begin the numbers of turns that ended with calls or an answer."""
    # The evictor takes 1,024; a table of ages has about a kilobyte.
    return KeyNumbers(range(4, 512), others=UNKNOWN)


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
