"""Adaptive chunking: how many prompt tokens a step may compute while others wait for their next token.

A step's time grows with the prompt tokens in it, and every running decode waits for all of it; the time that a prompt
takes in all hardly depends on how it is cut (paper, Adaptive Chunking).
"""

from __future__ import annotations

from agentcache.tuning import Tuning


def prefill_budget(tuning: Tuning, decodes: int, step_tokens: int) -> int:
    """Return the prompt tokens for a step of at most `step_tokens`, of which running requests decode `decodes`.

    Up to the threshold it is all that is left. Beyond, it shrinks as decodes grow, so that the time that all decodes
    together lose to prefill in a step stays the same; never under the floor, below which a GPU is not used well.
    """
    left = step_tokens - decodes
    if decodes <= tuning.chunking_threshold:
        return left
    return min(left, max(tuning.chunking_floor, step_tokens * tuning.chunking_threshold // decodes))
