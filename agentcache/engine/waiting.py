"""Waiting requests and what is kept in the cache: what they will hit is kept for them, and they leave pins alone."""

from __future__ import annotations

import math
from collections.abc import Callable

from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request, RequestStatus

from agentcache.engine.pins import LATEST_S, Pins
from agentcache.engine.visits import Visit
from agentcache.policy.cost import LossCost
from agentcache.policy.steering import Steering


class Waiting:
    """As the policy's `steering` says. `find_hits` gives the cached blocks that a request would reuse now."""

    def __init__(
        self,
        steering: Steering,
        pins: Pins | None,
        *,
        block_size: int,
        loss: LossCost,
        find_hits: Callable[[Request], list[KVCacheBlock]],
        count_requests: Callable[[], int],
    ) -> None:
        self.patience_s = steering.order.patience_s if steering.order is not None else math.inf
        """After so long a request goes before those of older jobs, and waits for no pins."""
        self._guarded = pins if steering.protect_waiting else None
        self._respected = pins if steering.wait_for_pins else None
        self._block_size = block_size
        self._loss = loss
        self._find_hits = find_hits
        self._count_requests = count_requests
        # In this step a request waits for pins.
        self._held_back = False

    def step(self) -> None:
        """A step is scheduled next."""
        self._held_back = False

    def guard(self, request: Request, visit: Visit) -> None:
        """Keep what it will hit, against those whose place is behind it."""
        if self._guarded is None:
            return
        free = [block.block_id for block in self._find_hits(request) if block.ref_cnt == 0]
        if free:
            self._guarded.guard(request.request_id, free, max(0.0, LATEST_S - visit.place.time_s))

    def waits_for_pins(self, request: Request, visit: Visit, free_blocks: int, now_s: float) -> bool:
        """Whether the request is not to be admitted in this step, because it would take pinned blocks.

        It waits as long as taking them would cost: the seconds of rebuilding them, in which all others in the engine
        get on no further. While it waits, nothing behind it without a pin is admitted either: small requests would
        keep a large one waiting for ever.
        """
        if self._respected is None or visit.pinned or request.status == RequestStatus.PREEMPTED:
            return False
        waited_s = now_s - visit.arrived_s
        if waited_s >= self.patience_s:
            return False
        if not self._held_back and (pinned := self._respected.blocks):
            lacking = cdiv(request.num_tokens, self._block_size) - (free_blocks - pinned)
            self._held_back = lacking > 0 and waited_s < self._cost_of_taking(min(lacking, pinned), request)
        return self._held_back

    def _cost_of_taking(self, blocks: int, request: Request) -> float:
        """Whose they are is not looked at: a pinned context is taken to be about as long as the request's."""
        return blocks * self._loss.at(request.num_tokens / 2) * (self._count_requests() - 1)

    def end(self, request: Request) -> None:
        """It was admitted, or is over."""
        if self._guarded is not None:
            self._guarded.drop_guard(request.request_id)
