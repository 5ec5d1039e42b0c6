"""What the policies that look at every block take for it, as measured; the others' decisions take no virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentcache.engine.blocks.block_queue import BlockQueue
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


def time_decisions(policy: str, queue: BlockQueue | None) -> DecisionTime | None:
    """Begin to time what the policy takes from its queue; None where that takes no virtual time."""
    scan = SCANS.get(policy)
    return DecisionTime(queue, scan) if queue is not None and scan is not None else None


class DecisionTime:
    """Adds up the scans of a queue's evictor."""

    def __init__(self, queue: BlockQueue, scan: Scan) -> None:
        """Watch what is taken from the queue, in place of the last watcher."""
        self._queue = queue
        self._scan = scan
        self._spent_s = 0.0
        queue.on_taken = self._note

    def take_s(self) -> float:
        """Return the seconds since the last call."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s

    def _note(self, taken: Sequence[KVCacheBlock]) -> None:
        # Blocks without KV are taken first, and unseen.
        victims = sum(block.block_hash is not None for block in taken)
        if victims:
            scans = victims if self._scan.each_victim else 1
            self._spent_s += scans * (self._queue.num_free_blocks + victims) * self._scan.block_s
