"""How long a GPU takes for a step. `agentcache.policy.presets.StepCost` is such a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agentcache.policy.presets import Row


class StepModel(Protocol):
    """A GPU with a model on it."""

    def step_s(self, rows: Sequence[Row]) -> float:
        """Return the seconds of one forward pass over a batch of prefill chunks and decodes; 0 without rows."""
        ...
