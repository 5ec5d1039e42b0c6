"""Tells the evictor how requests end: in small numbers, and how much likelier than any turn each is to be continued."""

from __future__ import annotations

from agentcache._evictor import SHARED_CLASS, Evictor
from agentcache.policy.lifespan import LifespanEstimator
from tool_runtime.learning.runtime import AgentRuntime
from tool_runtime.learning.tool_key import HUMAN, ToolKey

UNKNOWN = 0
PREEMPTED = 1
OVER = 2
# What several jobs begin with, or wait for.
SHARED = SHARED_CLASS
_FIRST_TOOL = 4
# The evictor takes 1,024; a table of ages has about a kilobyte.
_MAX_CLASSES = 512
# A command has a class of its own from its so many-th end on.
_OWN_CLASS_ENDS = 8


class FinishClasses:
    """Numbers are never given twice; when they are used up, commands fall to their tool, and tools to all others."""

    def __init__(self) -> None:
        self._numbers: dict[ToolKey, int] = {HUMAN: _FIRST_TOOL}
        self._ends: dict[ToolKey, int] = {}

    def number(self, key: ToolKey) -> int:
        """Return the number of a turn that ended with these calls, or with an answer."""
        if key in self._numbers:
            return self._numbers[key]
        coarse = key.coarse
        if key != coarse and self._is_frequent(key) and (number := self._assign(key)) is not None:
            return number
        if coarse in self._numbers:
            return self._numbers[coarse]
        number = self._assign(coarse)
        return UNKNOWN if number is None else number

    def _is_frequent(self, key: ToolKey) -> bool:
        # Commands that come once would fill the memory.
        if len(self._ends) > 8 * _MAX_CLASSES:
            self._ends.clear()
        self._ends[key] = self._ends.get(key, 0) + 1
        return self._ends[key] >= _OWN_CLASS_ENDS

    def _assign(self, key: ToolKey) -> int | None:
        if len(self._numbers) + _FIRST_TOOL >= _MAX_CLASSES:
            return None
        self._numbers[key] = number = len(self._numbers) + _FIRST_TOOL
        self._ends.pop(key, None)
        return number


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
