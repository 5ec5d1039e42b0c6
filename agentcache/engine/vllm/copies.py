"""Carries orders and reports of copies between the scheduler and the workers of the CPU cache."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from agentcache.engine.vllm.workers import (
    KVConnectorHandshakeMetadata,
    KVConnectorWorkerMetadata,
    SimpleCPUOffloadMetadata,
)


@dataclass
class CopyOrders(SimpleCPUOffloadMetadata):
    """Asks our workers, in vLLM's words, for the copies of a step: one to the GPU, one from it, or neither.

    Each has a number of its own, -1 where there is none.
    """


@dataclass
class HostBlocks(KVConnectorHandshakeMetadata):
    """Tells the scheduler how many blocks a worker has room for in the CPU cache."""

    count: int


@dataclass
class CopiesDone(KVConnectorWorkerMetadata):
    """Tells the scheduler of copies that have ended: by a copy's number, at how many workers.

    `failed` are the numbers of those that failed at any worker, `seconds` has how long the others took, added up.
    """

    ended: dict[int, int] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    seconds: dict[int, float] = field(default_factory=dict)

    def note(self, number: int, seconds: float | None) -> None:
        """Note that a copy has ended at one worker, after so many seconds; None: it failed."""
        self.ended[number] = 1
        if seconds is None:
            self.failed.add(number)
        else:
            self.seconds[number] = seconds

    def take(self, number: int) -> float | None:
        """Take out a copy, and return the seconds that it took; None: it failed."""
        del self.ended[number]
        seconds = self.seconds.pop(number, 0.0)
        if number not in self.failed:
            return seconds
        self.failed.discard(number)
        return None

    def aggregate(self, other: KVConnectorWorkerMetadata) -> CopiesDone:
        """Add up what two workers report, or two steps."""
        assert isinstance(other, CopiesDone)
        return CopiesDone(
            dict(Counter(self.ended) + Counter(other.ended)),
            self.failed | other.failed,
            {
                number: self.seconds.get(number, 0.0) + other.seconds.get(number, 0.0)
                for number in self.seconds.keys() | other.seconds.keys()
            },
        )
