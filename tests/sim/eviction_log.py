"""The blocks that an engine loses, in order, as vLLM tells the world of them."""

from __future__ import annotations

from collections.abc import Sequence

from vllm.distributed.kv_events import BlockRemoved, EventBatch, EventPublisher, KVCacheEvent
from vllm.v1.core.kv_cache_utils import ExternalBlockHash

from agentcache.engine.scheduler import AgentScheduler


def find_removed(events: Sequence[KVCacheEvent]) -> list[ExternalBlockHash]:
    """The hashes of the removed blocks."""
    removed: list[ExternalBlockHash] = []
    for event in events:
        if isinstance(event, BlockRemoved):
            removed += event.block_hashes
    return removed


class EvictionLog(EventPublisher):
    """Takes the place of the publisher of a scheduler's KV events; `evicted` has the hashes of the lost blocks."""

    def __init__(self, scheduler: AgentScheduler) -> None:
        super().__init__()
        self.evicted: list[ExternalBlockHash] = []
        scheduler.kv_cache_manager.block_pool.enable_kv_cache_events = True
        scheduler.kv_event_publisher = self

    def publish(self, events: EventBatch) -> None:
        self.evicted += find_removed(events.events)

    def shutdown(self) -> None:
        pass
