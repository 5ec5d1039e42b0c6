"""What a router that matches prefixes knows of an engine: the blocks that its KV events have stored and not removed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lone_scheduler import LoneScheduler
from vllm.config import KVEventsConfig
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, EventPublisher
from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id, maybe_convert_block_hash

# The publisher is replaced.
EVENTS = {"kv_events_config": KVEventsConfig(enable_kv_cache_events=True, publisher="null")}


class PrefixRouter(EventPublisher):
    """Takes the place of the publisher. `stored` counts blocks by group and hash: the same may be cached twice."""

    def __init__(self, lone: LoneScheduler) -> None:
        super().__init__()
        self.stored: Counter[tuple[Any, Any]] = Counter()
        self.removed = self.resets = 0
        self._pool = lone.pool
        lone.scheduler.kv_event_publisher = self

    def publish(self, events: EventBatch) -> None:
        self._take(events.events)

    def shutdown(self) -> None: ...

    def check(self) -> None:
        """Compare with what the pool has, after what it has yet to tell."""
        self._take(self._pool.take_events())
        keys = [key for block in self._pool.blocks if (key := block.block_hash) is not None]
        assert +self.stored == Counter(
            (get_group_id(key), maybe_convert_block_hash(get_block_hash(key))) for key in keys
        )
        assert min(self.stored.values(), default=1) > 0, "a block was removed that was not stored"

    def match(self, hashes: Sequence[Any]) -> int:
        """The first blocks of a prompt that the engine has."""
        known = [self.stored[0, maybe_convert_block_hash(each)] > 0 for each in hashes]
        return [*known, False].index(False)

    def _take(self, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, BlockStored):
                self.stored.update((event.group_idx, each) for each in event.block_hashes)
            elif isinstance(event, BlockRemoved):
                self.stored.subtract((event.group_idx, each) for each in event.block_hashes)
                self.removed += len(event.block_hashes)
            elif isinstance(event, AllBlocksCleared):
                self.stored.clear()
                self.resets += 1
        for key in [key for key, count in self.stored.items() if not count]:
            del self.stored[key]
