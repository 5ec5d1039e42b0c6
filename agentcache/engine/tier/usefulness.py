"""Which blocks are worth a copy: of requests that finished alike, how many of those stored were fetched again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from vllm.v1.core.kv_cache_utils import KVCacheBlock

# What is assumed of a class before any of its blocks was seen.
_PRIOR_STORED, _PRIOR_FETCHED = 400, 200
# After so many blocks all that was seen counts for half, so that a class which was given up is tried again.
_WINDOW = 50_000


class Usefulness:
    """Counts blocks by their finish class (`FreeContext.finish_class`)."""

    def __init__(self, least_share: float) -> None:
        """Take the share of fetched blocks under which the copies of a class cost more than they save."""
        self.least_share = least_share
        self._stored: Counter[int] = Counter()
        self._fetched: Counter[int] = Counter()
        self._seen = 0

    def is_useful(self, finish_class: int) -> bool:
        """Tell whether blocks of this class are worth a copy."""
        stored = _PRIOR_STORED + self._stored[finish_class]
        return _PRIOR_FETCHED + self._fetched[finish_class] >= self.least_share * stored

    def is_worth(self, block: KVCacheBlock, finish_class: int) -> bool:  # noqa: ARG002 (who knows the future asks)
        """Tell whether this block of the GPU, last used by a request of that class, is worth a copy."""
        return self.is_useful(finish_class)

    def note_avoided(self, blocks: int) -> None:
        """Note blocks that were not copied: time goes on."""
        self._seen += blocks
        if self._seen >= _WINDOW:
            self._seen = 0
            for counts in (self._stored, self._fetched):
                for finish_class in counts:
                    counts[finish_class] //= 2

    def note_stored(self, finish_classes: Iterable[int]) -> None:
        """Note the classes of blocks that were stored."""
        before = self._stored.total()
        self._stored.update(finish_classes)
        self.note_avoided(self._stored.total() - before)

    def note_fetched(self, finish_classes: Iterable[int]) -> None:
        """Note the classes of blocks that were fetched."""
        self._fetched.update(finish_classes)
