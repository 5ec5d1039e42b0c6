"""Keeps the blocks to copy to the CPU cache while that has room: those that requests left or computed of late.

Once the memory is full such copies are the first to go there, as the GPU still has the blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable

from agentcache.engine.segments.cached_blocks import WatchedBlockMap
from agentcache.engine.tier.computed_blocks import ComputedBlocks
from agentcache.engine.tier.host_cache import HostCache
from agentcache.engine.vllm.types import BlockHashWithGroupId, KVCacheBlock


class FreshBlocks:
    """Blocks of the GPU in the order in which they were left, for as long as the CPU cache has room.

    They stand in the map of cached blocks, which drops a block when the GPU takes it: the next owner's hash stands on
    it as soon as the next step is scheduled, and its KV comes with that step.
    """

    def __init__(self, host: HostCache, computed: ComputedBlocks, find_map: Callable[[], WatchedBlockMap]) -> None:
        """Take what finds the map of the GPU's cached blocks: a reset makes a new one."""
        self._host = host
        self._computed = computed
        self._find_map = find_map

    @property
    def _blocks(self) -> OrderedDict[int, KVCacheBlock]:
        return self._find_map().fresh

    def note_left(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Note that a request leaves these."""
        if self._host.room > 0:
            # A block without a hash may get one later, with other KV.
            self._blocks.update((block.block_id, block) for block in blocks if block.block_hash is not None)

    def take_computed(self) -> list[KVCacheBlock]:
        """Take up what running requests have computed: what they leave may be evicted in the step in which they end.

        Returns:
            Those blocks.
        """
        computed = self._computed.take()
        if self._host.room <= 0:
            return []
        holds = self._host.map.holds
        new = [block for block in computed if block.block_hash is not None and not holds(block.block_hash)]
        self.note_left(new)
        return new

    def add_to(
        self,
        chosen: dict[BlockHashWithGroupId, KVCacheBlock],
        margin: int,
        under_way: Collection[BlockHashWithGroupId],
        is_useful: Callable[[KVCacheBlock], bool],
    ) -> None:
        """Add fresh blocks to `chosen` while the CPU cache has room, up to `margin`: they displace nothing there.

        None is added that is `under_way`, or of which a copy would not be `is_useful`.
        """
        holds, blocks = self._host.map.holds, self._blocks
        most = min(margin, self._host.room)
        while blocks and len(chosen) < most:
            _, block = blocks.popitem(last=False)
            key = block.block_hash
            if key is None or key in under_way or holds(key) or not is_useful(block):
                continue
            chosen.setdefault(key, block)
        if self._host.room <= 0:
            self.clear()

    def clear(self) -> None:
        """Forget all of them."""
        self._blocks.clear()
