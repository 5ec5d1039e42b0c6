"""Adaptive chunking: how many prompt tokens a step may compute while others wait for their next token.

A step's time grows with the prompt tokens in it, and every running decode waits for all of it; the time that a prompt
takes in all hardly depends on how it is cut (paper, Adaptive Chunking).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentcache.engine.vllm.types import Request
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


class StepLimit:
    """Limits the tokens of each step.

    `tuning` None leaves steps at their full size; measurements change it. `gate` has steps without any prefill: it
    takes a step's budget of prompt tokens, the requests that decode and all requests, and returns the budget or 0.
    """

    def __init__(self, tuning: Tuning | None, step_tokens: int, gate: Callable[[int, int, int], int]) -> None:
        self.tuning = tuning
        self.budget: int | None = None
        """Prompt tokens that the last step could have had; None while nothing limits them."""
        self._step_tokens = step_tokens
        self._gate = gate

    def find(self, running: Sequence[Request], count_requests: Callable[[], tuple[int, int]]) -> int | None:
        """Find the most tokens of the next step; None leaves the limit as it is.

        `count_requests` counts those that run and those that wait.
        """
        if self.tuning is None:
            self.budget = None
            return None
        decodes = sum(not request.is_prefill_chunk for request in running)
        self.budget = self._gate(
            prefill_budget(self.tuning, decodes, self._step_tokens), decodes, sum(count_requests())
        )
        return decodes + self.budget
