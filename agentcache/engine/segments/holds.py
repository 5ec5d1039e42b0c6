"""Keeps blocks from eviction until the waiting request that needs them is admitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from agentcache.engine.segments.cached_blocks import CachedBlockMap, HitFinder
from agentcache.engine.segments.fill_request import Parent, Place
from agentcache.engine.vllm.types import BlockPool, KVCacheBlock, Request


class Holds:
    """Keeps a reference to each block that is held, as a running request does."""

    def __init__(self, pool: BlockPool, finder: HitFinder) -> None:
        # By the request's id.
        self.parents: dict[str, Parent] = {}
        # Requests that this step found waiting for a fill request or a fetch: none that it looks at later takes what
        # they hold.
        self.ahead: set[str] = set()
        self._pool = pool
        self._finder = finder

    def hold_cached(self, request: Request, block_map: CachedBlockMap, places: Sequence[Place]) -> None:
        """Hold blocks of a waiting request that are cached until it is admitted."""
        if (parent := self.parents.get(request.request_id)) is not None:
            # A request that waits for a fetch comes again with what is held already.
            places = [place for place in places if place not in parent.held]
        blocks = self._finder.cache.find_blocks([block_map.keys[group][index] for index, group in places])
        self.hold(request, dict(zip(places, blocks, strict=True)))

    def hold(self, request: Request, blocks: Mapping[Place, KVCacheBlock], *, fetched: bool = False) -> None:
        """Hold blocks of a waiting request until it is admitted."""
        parent = self.parents.setdefault(request.request_id, Parent(request))
        if fetched:
            parent.fetched.update(index for index, _ in blocks)
        new = {place: block for place, block in blocks.items() if place not in parent.held}
        self._pool.touch(list(new.values()))
        parent.held.update(new)

    def release_blocks(self, names: Iterable[str], blocks: Iterable[KVCacheBlock]) -> list[Request]:
        """Release what requests hold of blocks that have not got what they were to hold, and list those that wait."""
        ids = {block.block_id for block in blocks}
        parents = [parent for name in names if (parent := self.parents.get(name)) is not None]
        for parent in parents:
            empty = [place for place, block in parent.held.items() if block.block_id in ids]
            parent.fetched.difference_update(index for index, _ in empty)
            self.release(parent, empty)
        return [parent.request for parent in parents]

    def release_all_but(self, kept: Request | None) -> bool:
        """Release what is held for others than this request and those `ahead` of it.

        Were theirs released as well, requests that fetch more than the cache holds together would evict what the others
        have fetched, for ever. Return False when nothing was held.
        """
        others = [
            parent
            for name, parent in self.parents.items()
            if parent.held and parent.request is not kept and name not in self.ahead
        ]
        for parent in others:
            self.release(parent, parent.held)
        return bool(others)

    def count_held(self) -> Counter[int]:
        """Count how often each block is held, by its id."""
        return Counter(block.block_id for parent in self.parents.values() for block in parent.held.values())

    def release(self, parent: Parent, places: Iterable[Place]) -> None:
        """Release some of what is held for a request."""
        # The last first, as vLLM frees a request's blocks.
        self._pool.free_blocks([parent.held.pop(place) for place in sorted(places, reverse=True)])
