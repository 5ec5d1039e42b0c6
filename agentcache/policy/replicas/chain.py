"""Hashes a request's tokens as a chain of blocks, and keeps which blocks each engine has.

A hash stands for all tokens up to its block's end.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

_HASH_BYTES = 16
_TOKEN = "I"
_TOKEN_BYTES = array(_TOKEN).itemsize


class Chain:
    """Full blocks of `block_tokens` tokens each. Chains of another `origin` (tenant, adapter) share no hash.

    These are not the engine's own hashes: they take a tenth of the time, and no engine sees them.
    """

    def __init__(self, tokens: Sequence[int], block_tokens: int, origin: str = "") -> None:
        """Hash the prompt. O(tokens)."""
        self.tokens = 0
        self.hashes: list[bytes] = []
        self._block_bytes = block_tokens * _TOKEN_BYTES
        self._last = origin.encode("utf-8", "surrogatepass")
        self._rest = b""
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens behind."""
        self.tokens += len(tokens)
        text = self._rest + array(_TOKEN, tokens).tobytes()
        whole = len(text) - len(text) % self._block_bytes
        last = self._last
        for start in range(0, whole, self._block_bytes):
            last = blake2b(last + text[start : start + self._block_bytes], digest_size=_HASH_BYTES).digest()
            self.hashes.append(last)
        self._last, self._rest = last, text[whole:]


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
