"""The factor by which the evictor trusts or doubts that a finished turn's blocks are used again."""

from __future__ import annotations

import math

from tool_runtime.learning.durations import GapHistory

# Assumed; not tuned. AsymCache (Applications, Agentic Workload) has such a factor and gives no number.
DEFAULT_BOUND = 8.0


def correction_factor(
    history: GapHistory, lifespan_s: float | None, reference: float, bound: float = DEFAULT_BOUND
) -> float:
    """Return the chance that this turn's job returns within `lifespan_s` seconds, over `reference`, that of any turn.

    After a tool call that chance comes from the tool's record, after a final answer from the human one; `history` is
    one or the other. `lifespan_s` and `reference` are where the evictor's frequency turns. Between 1 / bound and bound;
    exactly 1, which changes nothing, where no gap was observed yet or there is no lifespan.
    """
    if not 0 < reference <= 1:
        raise ValueError(f"reference {reference}: must be a probability above 0")
    if not 1 <= bound < math.inf:
        raise ValueError(f"bound {bound}: must be at least 1 and finite")
    if lifespan_s is None or history.evidence <= 0:
        return 1.0
    return min(max(history.curve.returned_within(lifespan_s) / reference, 1 / bound), bound)
