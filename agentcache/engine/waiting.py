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
        count_running: Callable[[], int],
    ) -> None:
        self.patience_s = steering.order.patience_s if steering.order is not None else math.inf
        """After so long a request goes before those of older jobs; for so long at most it waits for pins."""
        self._guarded = pins if steering.protect_waiting else None
        self._respected = pins if steering.wait_for_pins != "none" else None
        self._weighs = steering.wait_for_pins == "weighed"
        self._block_size = block_size
        self._loss = loss
        self._find_hits = find_hits
        self._count_running = count_running
        # In this step requests wait for pins.
        self._held_back = False
        # Since when the pins have kept requests from being admitted.
        self._held_since_s: float | None = None

    def step(self, waiting: int) -> None:
        """A step is scheduled next; so many requests wait."""
        self._held_back = False
        if not waiting:
            # The last one that was held back was aborted.
            self._held_since_s = None

    def guard(self, request: Request, visit: Visit) -> None:
        """Keep what it will hit, against those whose place is behind it."""
        if self._guarded is None:
            return
        free = [block.block_id for block in self._find_hits(request) if block.ref_cnt == 0]
        if free:
            self._guarded.guard(request.request_id, free, max(0.0, LATEST_S - visit.place.time_s))

    def waits_for_pins(self, request: Request, visit: Visit, free_blocks: int, now_s: float) -> bool:
        """Whether the request is not to be admitted in this step, because it would take pinned blocks.

        While it waits, nothing behind it without a pin is admitted either: small requests would keep a large one
        waiting for ever.
        """
        if self._respected is None or visit.pinned or request.status == RequestStatus.PREEMPTED:
            return False
        if not self._held_back and (pinned := self._respected.blocks):
            lacking = cdiv(request.num_tokens, self._block_size) - (free_blocks - pinned)
            self._held_back = lacking > 0 and self._is_worth_waiting(min(lacking, pinned), request, now_s)
        return self._held_back

    def _is_worth_waiting(self, blocks: int, request: Request, now_s: float) -> bool:
        """To take the blocks costs the seconds of rebuilding them, in which all that runs gets on no further.

        Requests wait for as long as that, counted from the last admission, whoever comes up in the meantime: were each
        one's own wait counted, a long queue would pay that price at every admission.
        """
        if not self._weighs:
            return True
        if self._held_since_s is None:
            self._held_since_s = now_s
        # Whose they are is not looked at: a pinned context is taken to be about as long as the request's.
        cost_s = blocks * self._loss.at(request.num_tokens / 2) * self._count_running()
        return now_s - self._held_since_s < min(cost_s, self.patience_s)

    def admitted(self, request: Request, visit: Visit) -> None:
        """It runs, for the first time."""
        if not visit.pinned:
            self._held_since_s = None
        self.end(request)

    def end(self, request: Request) -> None:
        """It waits no longer."""
        if self._guarded is not None:
            self._guarded.drop_guard(request.request_id)
