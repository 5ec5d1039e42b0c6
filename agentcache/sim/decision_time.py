"""What the policies that look at every block take for it, as measured; the others' decisions take no virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentcache.engine.blocks.block_queue import BlockQueue
from agentcache.engine.parts import Part
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.vllm.types import KVCacheBlock


@dataclass(frozen=True, slots=True)
class Scan:
    """Seconds for each block with KV that is looked at: once for all that is taken together, or for each victim."""

    block_s: float
    each_victim: bool = False


# One core of an AMD EPYC, 30,000 blocks: docs/results/decision-cost.md.
SCANS = {
    "max-score": Scan(8e-9),
    "pensieve": Scan(5e-9),
    "asymcache-linear": Scan(10e-9, each_victim=True),
}


def time_decisions(policy: str, scheduler: AgentScheduler) -> DecisionTime | None:
    """Begin to time what the policy takes from its queue; None where that takes no virtual time."""
    queue, scan = scheduler.block_queue, SCANS.get(policy)
    if queue is None or scan is None:
        return None
    decisions = DecisionTime(queue, scan)
    scheduler.observers.watch("decisions", decisions)
    return decisions


class DecisionTime(Part):
    """Adds up the scans of a queue's evictor."""

    def __init__(self, queue: BlockQueue, scan: Scan) -> None:
        self._queue = queue
        self._scan = scan
        self._spent_s = 0.0

    def take_s(self) -> float:
        """Return the seconds since the last call."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s

    def evicted(self, blocks: Sequence[KVCacheBlock], request_id: str) -> None:  # noqa: ARG002
        """Add the scans that these victims took. Blocks without KV are taken first, and unseen."""
        victims = sum(block.block_hash is not None for block in blocks)
        if victims:
            scans = victims if self._scan.each_victim else 1
            self._spent_s += scans * (self._queue.num_free_blocks + victims) * self._scan.block_s
