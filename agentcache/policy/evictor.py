"""The contract of every eviction policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence


class Evictor(ABC):
    """Orders the free blocks of a cache and gives up the ones that are worth least.

    A block is named by its id, an integer from 0. It is *free* from `add` or `add_empty` until `evict` or `remove`;
    only free blocks are known here. Free blocks may still hold KV that a later request reuses (then it is removed).
    """

    @abstractmethod
    def add(self, block_ids: Sequence[int]) -> None:
        """Free blocks that hold reusable KV. Where the policy sees no difference, earlier ids go first.

        The caller never adds a block that is free already.
        """

    @abstractmethod
    def add_empty(self, block_ids: Sequence[int]) -> None:
        """Free blocks without reusable KV: they go before every other block, the latest call first, in order."""

    @abstractmethod
    def evict(self, count: int) -> list[int]:
        """Take out the `count` blocks to lose, in the order in which they are lost. `evict(0)` does nothing.

        Raises ValueError when fewer are free; nothing is taken then.
        """

    @abstractmethod
    def remove(self, block_id: int) -> None:
        """Take out one block because its KV is used again. Raises KeyError when it is not free."""

    @abstractmethod
    def order(self) -> Iterator[int]:
        """The free blocks in the order in which `evict` would take them. Valid until the next change."""

    @abstractmethod
    def __len__(self) -> int:
        """How many blocks are free."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise IntegrityError when the evictor's own records contradict each other."""
