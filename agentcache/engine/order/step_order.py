"""The order of jobs that holds in a step: beside a CPU cache it goes by what will be lost."""

from __future__ import annotations

from collections.abc import Callable

from agentcache.policy.runtime_policy import Order, RuntimePolicy


class StepOrder:
    """Lies between the policy's orders for when nothing and when all of what is evicted will be lost."""

    def __init__(self, runtime_policy: RuntimePolicy, foresee_loss: Callable[[], float]) -> None:
        """`foresee_loss` gives the share that will be lost."""
        self._foresee_loss = foresee_loss
        self._all_lost = runtime_policy.order or Order()
        self._none_lost = runtime_policy.kept_order or self._all_lost
        self.loss = 0.0
        """The share of what is evicted in this step that will be lost."""
        self.order = self._none_lost
        self.step()

    def step(self) -> None:
        """Note that a step is scheduled next."""
        loss = self._foresee_loss()
        if loss != self.loss:
            self.loss, self.order = loss, self._none_lost.towards(self._all_lost, loss)
