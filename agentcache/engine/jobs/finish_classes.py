"""Tells the evictor how requests end: in small numbers, and how much likelier than any turn each is to be continued."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from agentcache._evictor import AGE_EDGES_S, SHARED_CLASS, Evictor, ReturnWaits
from agentcache.policy.lifespan import LifespanEstimator
from tool_runtime.learning.durations import POOL, Durations
from tool_runtime.learning.runtime import AgentRuntime
from tool_runtime.learning.tool_key import KeyNumbers, ToolKey

UNKNOWN = 0
PREEMPTED = 1
OVER = 2
# Classes without a tool have no record. Their hazard is that of any turn times these ratios: of shared blocks the first
# of three jobs comes, at the least; a preempted request is next in the queue; of a job that is over others come back to
# what they share with it, if to anything. The last two are assumed, an order of magnitude each.
_HAZARD_RATIOS = {UNKNOWN: 1.0, SHARED_CLASS: 3.0, PREEMPTED: 10.0, OVER: 0.1}
# What was seen since of this share of all before is too little to tell.
_TELL_SHARE = 0.01
_EDGES_S = np.array(AGE_EDGES_S)


def number_calls() -> KeyNumbers:
    """Begin the numbers of turns that ended with calls or an answer."""
    # The evictor takes 1,024; a table of ages has about a kilobyte.
    return KeyNumbers(range(4, 512), others=UNKNOWN)


class FinishClasses:
    """Numbers the turns that end, and tells the evictors how long each class is away, as its tools' records have it."""

    def __init__(self, waits: ReturnWaits, durations: Durations) -> None:
        self._waits = waits
        self._durations = durations
        self._numbers = number_calls()
        # Of each key, what had been observed when it was told last.
        self._told: dict[ToolKey, int] = {}

    def number(self, key: ToolKey) -> int:
        """Return the class of a turn that has ended under this key."""
        number = self._numbers.number(key)
        if number != UNKNOWN:
            self._tell(self._numbers.keys[number], {number: 1.0})
        self._tell(POOL, _HAZARD_RATIOS)
        return number

    def _tell(self, key: ToolKey, hazard_ratios: Mapping[int, float]) -> None:
        if self._durations.observed <= (1 + _TELL_SHARE) * self._told.get(key, -1):
            return
        self._told[key] = self._durations.observed
        away = self._durations.history(key).curve.survivals(_EDGES_S)
        for number, ratio in hazard_ratios.items():
            # Powers are rounded, each by itself.
            self._waits.expect(number, np.minimum.accumulate(away**ratio).tolist())


class ReuseFactors:
    """Feeds gaps and correction factors to an evictor that takes them.

    The evictor adds the gaps to `lifespan`, at which the chance of reuse is `reuse_probability`.
    """

    def __init__(
        self, evictor: Evictor, runtime: AgentRuntime, lifespan: LifespanEstimator, reuse_probability: float
    ) -> None:
        self._evictor = evictor
        self._runtime = runtime
        self._lifespan = lifespan
        self._reuse_probability = reuse_probability

    def observe(self, gap_s: float) -> None:
        """Learn that a job has come back."""
        self._evictor.observe_reuse(gap_s)

    def find(self, key: ToolKey) -> float:
        """Find the factor of a turn that waits for these calls."""
        return self._runtime.correction_factor(key, self._lifespan.mean_s, self._reuse_probability)
