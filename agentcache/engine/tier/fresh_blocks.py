"""What is copied to the host's memory while that has empty blocks: what requests have left, or computed, of late.

Once the memory is full such copies are the first to go there, as the GPU still has the blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId, KVCacheBlock

from agentcache.engine.tier.computed_blocks import ComputedBlocks
from agentcache.engine.tier.host_cache import HostCache


class FreshBlocks:
    """Blocks of the GPU in the order in which they were left, for as long as the host's memory has room."""

    def __init__(self, host: HostCache, computed: ComputedBlocks) -> None:
        self._host = host
        self._computed = computed
        self._blocks: deque[KVCacheBlock] = deque()

    def note_left(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Note that a request leaves these."""
        if self._host.room > 0:
            self._blocks.extend(blocks)

    def take_computed(self) -> list[KVCacheBlock]:
        """Take up what running requests have computed: what they leave may be lost in the step in which they end.

        Returns:
            Those blocks.
        """
        computed = self._computed.take()
        if self._host.room <= 0:
            return []
        holds = self._host.map.holds
        new = [block for block in computed if block.block_hash is not None and not holds(block.block_hash)]
        self._blocks.extend(new)
        return new

    def add_to(
        self,
        chosen: dict[BlockHashWithGroupId, KVCacheBlock],
        margin: int,
        under_way: Collection[BlockHashWithGroupId],
        is_useful: Callable[[KVCacheBlock], bool],
    ) -> None:
        """Add to what is `chosen`, as many as a few steps take: into room that is empty, nothing is lost.

        None is added that is `under_way`, or of which a copy would not be `is_useful`.
        """
        holds = self._host.map.holds
        most = min(margin, self._host.room)
        while self._blocks and len(chosen) < most:
            block = self._blocks.popleft()
            key = block.block_hash
            if key is None or key in under_way or holds(key) or not is_useful(block):
                continue
            chosen.setdefault(key, block)
        if self._host.room <= 0:
            self.clear()

    def clear(self) -> None:
        """Forget all of them."""
        self._blocks.clear()
