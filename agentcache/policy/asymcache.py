"""The paper's evictor: least expected recomputation cost first."""

from __future__ import annotations

from agentcache import _evictor
from agentcache.policy.compiled import CompiledEvictor
from agentcache.policy.lifespan import LambdaController


class AsymCacheEvictor(CompiledEvictor):
    """Two heaps, one for each exponential. O(log n) per block.

    The reuse frequency of a block that has been idle for τ is min(exp(−τ/α), λ·exp(−(τ−τ₀)/β)); the loss of a block
    at position n costs max(floor, slope·n + base) seconds. All times are seconds, λ is 1 at first.
    """

    kind: type[_evictor.AsymCacheEvictor | _evictor.AsymCacheLinearEvictor] = _evictor.AsymCacheEvictor

    def __init__(
        self,
        *,
        num_blocks: int,
        alpha_s: float,
        beta_s: float,
        tau0_s: float,
        slope_s: float,
        base_s: float,
        floor_s: float,
        controller: LambdaController | None = None,
    ) -> None:
        """Make an empty evictor. Without a controller λ stays as it is set."""
        self._controller = controller
        self.lambda_value = 1.0
        self._asymcache = self.kind(
            num_blocks=num_blocks,
            alpha_s=alpha_s,
            beta_s=beta_s,
            tau0_s=tau0_s,
            slope_s=slope_s,
            base_s=base_s,
            floor_s=floor_s,
        )
        super().__init__(self._asymcache)

    def observe_reuse(self, idle_s: float) -> None:
        """Have the controller, if there is one, set λ anew."""
        if self._controller is not None:
            self.set_lambda(self._controller.observe(idle_s))

    def set_lambda(self, value: float) -> None:
        """Move the turning point of the reuse frequency, from the next eviction on.

        Args:
            value: λ, finite and above 0.

        Raises:
            ValueError: λ is out of range.
        """
        self.lambda_value = value
        self._asymcache.set_lambda(value)
