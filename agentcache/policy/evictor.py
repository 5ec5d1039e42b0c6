"""The contract of every eviction policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence


class Evictor(ABC):
    """Orders the free blocks of a cache and gives up the ones that are worth least.

    A block is named by its id, an integer from 0. It is *free* from `add` or `add_empty` until `evict` or `remove`;
    only free blocks are known here. Free blocks may still hold KV that a later request reuses (then it is removed).
    Times are seconds on one clock of the caller's, which never goes back.
    """

    @abstractmethod
    def add(self, block_ids: Sequence[int], positions: Sequence[int], now_s: float, factor: float = 1.0) -> None:
        """Free blocks that hold reusable KV, last used at `now_s`. The caller never adds a block that is free already.

        `positions[i]` is the number of tokens of its sequence up to the end of block i, from which its cost follows.
        `factor` (> 0) multiplies the blocks' value: above 1 where reuse is likelier than their age says. Where the
        policy sees no difference, earlier ids go first.
        """

    @abstractmethod
    def add_empty(self, block_ids: Sequence[int]) -> None:
        """Free blocks without reusable KV: they go before every other block, the latest call first, in order."""

    @abstractmethod
    def evict(self, count: int, now_s: float) -> list[int]:
        """Take out the `count` blocks to lose, in the order in which they are lost. `evict(0, ...)` does nothing.

        Raises ValueError when fewer are free; nothing is taken then.
        """

    @abstractmethod
    def remove(self, block_id: int) -> None:
        """Take out one block because its KV is used again. Raises KeyError when it is not free."""

    def observe_reuse(self, idle_s: float) -> None:  # noqa: B027 (most policies learn nothing from it)
        """A request came back to blocks that had been free for `idle_s` seconds, and removed them."""

    @abstractmethod
    def order(self, now_s: float) -> Iterator[int]:
        """The free blocks in the order in which `evict` would take them now. Valid until the next change."""

    @abstractmethod
    def __len__(self) -> int:
        """How many blocks are free."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise IntegrityError when the evictor's own records contradict each other."""
