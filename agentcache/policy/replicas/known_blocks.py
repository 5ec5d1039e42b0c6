"""Which blocks an engine probably has cached, judged by the requests that were sent to it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class KnownBlocks:
    """The blocks used last, `capacity` of them: an engine's own policy may keep others, and corrects nothing here.

    With a block, all blocks before it in its chain are known: the end of a chain leaves first.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        # Used longest ago first. Of a plain dict, taking the first is slow once many are gone.
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of blocks known."""
        return len(self._blocks)

    def count_hits(self, hashes: Sequence[bytes]) -> int:
        """Count the blocks that the chain begins with and that are known. O(log blocks)."""
        low, high = 0, len(hashes)
        while low < high:
            middle = (low + high) // 2
            if hashes[middle] in self._blocks:
                low = middle + 1
            else:
                high = middle
        return low

    def use(self, hashes: Sequence[bytes]) -> None:
        """Note that a request uses the whole chain. O(blocks)."""
        blocks = self._blocks
        for block in reversed(hashes):
            blocks[block] = None
            blocks.move_to_end(block)
        while len(blocks) > self._capacity:
            blocks.popitem(last=False)

    def clear(self) -> None:
        """Forget all: the engine has."""
        self._blocks.clear()
