"""Tells blocks that running requests have computed, to be copied long before they are freed, from those yet to come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentcache.engine.segments.cached_blocks import KV_CACHE_GROUP
from agentcache.engine.vllm.types import KVCacheBlock, Request, Scheduler, SchedulerOutput


class ComputedBlocks:
    """Gives each full block of each running request once. O(running requests) a step."""

    def __init__(
        self,
        list_running: Callable[[], Sequence[Request]],
        blocks_of: Callable[[str], Sequence[KVCacheBlock]],
        block_size: int,
    ) -> None:
        """Take what lists the running requests, and the blocks of one by its id, in order."""
        self._list_running = list_running
        self._blocks_of = blocks_of
        self._block_size = block_size
        # By the request's id, how many of its blocks were given.
        self._given: dict[str, int] = {}

    def take(self) -> list[KVCacheBlock]:
        """Return what was computed before the step that has just been scheduled, and was not given before.

        A request that this step has admitted gives nothing: what it hits may be computed in this very step, as part of
        another request.
        """
        given: dict[str, int] = {}
        new: list[KVCacheBlock] = []
        for request in self._list_running():
            name = request.request_id
            if (before := self._given.get(name)) is None:
                given[name] = 0
                continue
            given[name] = computed = request.num_computed_tokens // self._block_size
            if computed > before:
                new += self._blocks_of(name)[before:computed]
        self._given = given
        return new


def find_filled(scheduler: Scheduler, step: SchedulerOutput) -> set[int]:
    """Find the blocks that a step which has just been scheduled fills, by their ids.

    Their hashes stand on them by now, their KV comes with the step. O(rows of the step + blocks that it fills).
    """
    filled: set[int] = set()
    size, get_blocks = scheduler.block_size, scheduler.kv_cache_manager.get_blocks
    for name, tokens in step.num_scheduled_tokens.items():
        computed = scheduler.requests[name].num_computed_tokens
        first, end = computed // size, (computed + tokens) // size
        if first < end:
            filled.update(block.block_id for block in get_blocks(name).blocks[KV_CACHE_GROUP][first:end])
    return filled
