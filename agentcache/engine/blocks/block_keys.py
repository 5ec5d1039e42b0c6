"""What vLLM's cache calls the blocks of a request, made once for each block and not again at every look-up."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from agentcache.engine.vllm.types import BlockHash, BlockHashWithGroupId, Request, make_block_hash_with_group_id

Keys = list[BlockHashWithGroupId]


class BlockKeys:
    """Keeps the keys of every request as long as that is there."""

    def __init__(self, groups: int = 1) -> None:
        # What vLLM puts behind a block's hash to tell groups of layers apart.
        self._suffixes = [make_block_hash_with_group_id(BlockHash(b""), group) for group in range(groups)]
        self._known: WeakKeyDictionary[Request, list[Keys]] = WeakKeyDictionary()

    def follow(self, request: Request, earlier: Request) -> None:
        """Take over the keys of an earlier request for the blocks that both begin with, if that still has any."""
        known = self._known.get(earlier)
        if known is None:
            return
        low, high = 0, min(len(request.block_hashes), len(earlier.block_hashes), *map(len, known))
        # Hashes are chained: after the first difference all differ.
        while low < high:
            middle = (low + high + 1) // 2
            if request.block_hashes[middle - 1] == earlier.block_hashes[middle - 1]:
                low = middle
            else:
                high = middle - 1
        self._known[request] = [keys[:low] for keys in known]

    def find(self, request: Request) -> list[Keys]:
        """Return the keys of the request's full blocks, group by group. They are not to be changed."""
        hashes = request.block_hashes
        known = self._known.get(request)
        if known is None:
            known = self._known[request] = [[] for _ in self._suffixes]
        for keys, suffix in zip(known, self._suffixes, strict=True):
            # A streamed request may have lost its last blocks, and got others. Hashes stand for all before them.
            if len(keys) > len(hashes) or (keys and keys[-1] != hashes[len(keys) - 1] + suffix):
                keys.clear()
            if len(keys) < len(hashes):
                keys += [BlockHashWithGroupId(each + suffix) for each in hashes[len(keys) :]]
        return known
