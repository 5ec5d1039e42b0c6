"""Tells which tenants hold more of the GPU's cache than their share, and has them give way to those that hold less.

A share is borrowed while its tenant has neither requests nor pins. It is given back thus: pins of who is beyond its
share are the first to lose their blocks, from the next step on, and the turns of who is below its share wait for none
of them. What runs is not preempted for it, so blocks in use come back when their turns end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from agentcache.engine.blocks.pins import LATEST_S, Pin, Pins
from agentcache.engine.order.tenants import TenantShares
from agentcache.engine.parts import Part
from agentcache.engine.vllm.base import cdiv
from agentcache.engine.vllm.types import Request


class CacheShares(Part):
    """Measures anew in each step, in O(running requests + pins), while several tenants have any."""

    def __init__(
        self,
        tenants: TenantShares,
        pins: Pins | None,
        *,
        num_blocks: int,
        block_size: int,
        list_running: Callable[[], Iterable[Request]],
    ) -> None:
        """`pins` have the tenants by their ids in `tenants`."""
        self._tenants = tenants
        self._pins = pins
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._list_running = list_running
        self.beyond: frozenset[str] = frozenset()
        """Those that hold more than their share, by their ids; nobody while there is one tenant alone."""

    def step(self) -> None:
        """Note that a step is scheduled next: find who is beyond its share now."""
        beyond = self._find_beyond()
        if beyond != self.beyond:
            self.beyond = beyond
            if self._pins is not None:
                self._pins.rank_anew()

    def _find_beyond(self) -> frozenset[str]:
        weights = {tenant.id: tenant.share.weight for tenant in self._tenants.busy}
        left = {} if self._pins is None else {pin: self._pins.blocks_left(pin) for pin in self._pins}
        weights |= {pin.tenant: self._tenants.find_weight(pin.tenant) for pin in left}
        if len(weights) < 2:
            return frozenset()
        held: Counter[str] = Counter()
        for request in self._list_running():
            held[self._tenants.find(request).id] += cdiv(request.num_computed_tokens, self._block_size)
        for pin, blocks in left.items():
            held[pin.tenant] += blocks
        block_weight = sum(weights.values()) / self._num_blocks
        return frozenset(tenant for tenant, blocks in held.items() if blocks * block_weight > weights[tenant])

    def passes(self, request: Request) -> bool:
        """Tell whether the request waits for nothing that others hold: they are beyond their share, and it is not."""
        return bool(self.beyond) and self._tenants.find(request).id not in self.beyond

    def lift(self, tenant: str) -> float:
        """Return what is added to the rank of a tenant's pins: more than they differ, unless it is beyond its share."""
        return 0.0 if tenant in self.beyond else 2 * LATEST_S

    def lift_of(self, request: Request) -> float:
        """Return what is added to the rank of what a request waits for."""
        return self.lift(self._tenants.find(request).id)

    def rank(self, rank: Callable[[Pin], float]) -> Callable[[Pin], float]:
        """Return how a pin stands among others: those of tenants beyond their share give way first."""
        return lambda pin: rank(pin) + self.lift(pin.tenant)
