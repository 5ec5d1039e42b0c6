"""The contract of every eviction policy, in Python and in C++ (`csrc/core/evictor.hpp`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice

from agentcache._evictor import FreeContext

UNKNOWN_REQUEST = FreeContext()


class Evictor(ABC):
    """Orders the free blocks of a cache and gives up the ones that are worth least.

    A block is named by its id, an integer from 0. It is *free* from `add` or `add_empty` until `evict` or `remove`;
    only free blocks are known here. Free blocks may still hold KV that a later request reuses (then it is removed).
    Times are seconds on one clock of the caller's. A call that raises changes nothing. Calls on one evictor must not
    overlap; only those of `order` and `len` may overlap with each other: they change nothing.
    """

    @abstractmethod
    def add(
        self,
        block_ids: Sequence[int],
        positions: Sequence[int],
        now_s: float,
        context: FreeContext = UNKNOWN_REQUEST,
    ) -> None:
        """Free blocks that hold reusable KV. Where the policy sees no difference, earlier ids go first.

        Args:
            block_ids: Blocks that one request has freed together. None of them is free already.
            positions: For each block the tokens of its sequence up to its end, from which its cost follows.
            now_s: When the blocks were last used, in seconds.
            context: What is known of the request. Its `factor` (> 0) multiplies the blocks' value: above 1 where reuse
                is likelier than their age says.

        Raises:
            ValueError: A compiled evictor was given a block that is free already or unknown, or a value out of range.
        """

    @abstractmethod
    def add_empty(self, block_ids: Sequence[int]) -> None:
        """Free blocks without reusable KV: they go before every other block, the latest call first, in order.

        Args:
            block_ids: Blocks of which none is free already.

        Raises:
            ValueError: A compiled evictor was given a block that is free already or unknown.
        """

    @abstractmethod
    def evict(self, count: int, now_s: float) -> list[int]:
        """Take out the `count` blocks to lose.

        Args:
            count: Number of blocks; 0 is safe.
            now_s: The present, in seconds.

        Returns:
            Their ids, in the order in which they are lost.

        Raises:
            ValueError: Fewer are free.
        """

    @abstractmethod
    def remove(self, block_id: int) -> None:
        """Take out one block because its KV is used again.

        Args:
            block_id: Any number.

        Raises:
            KeyError: No block of this id is free.
        """

    @abstractmethod
    def order(self, now_s: float) -> Iterator[int]:
        """List the free blocks without a change to any.

        Args:
            now_s: The present, in seconds.

        Returns:
            Their ids, in the order in which `evict` would take them at `now_s`. Valid until the next change.
        """

    def first(self, count: int, now_s: float) -> list[int]:
        """List the blocks that go first without a change to any.

        Args:
            count: Number of blocks; 0 is safe.
            now_s: The present, in seconds.

        Returns:
            The first `count` ids of `order`, or all if fewer blocks are free.
        """
        return list(islice(self.order(now_s), count))

    @abstractmethod
    def __len__(self) -> int:
        """Return how many blocks are free."""

    def settle(self, now_s: float) -> None:  # noqa: B027 (most policies learn nothing from it)
        """Learn from the blocks removed so far: `remove` does not tell the time.

        Args:
            now_s: The present, in seconds.
        """

    def observe_reuse(self, idle_s: float) -> None:  # noqa: B027 (most policies learn nothing from it)
        """Learn that a request came back to blocks and removed them. In Python alone: what learns from it is.

        Args:
            idle_s: For how many seconds the blocks had been free.
        """

    def observe_return(self, finish_class: int, age_s: float, share: float) -> None:  # noqa: B027 (as above)
        """Learn that a part of a group of blocks came back. They were kept elsewhere, in a pin.

        Args:
            finish_class: The class under which the blocks were freed. An `add` has told it.
            age_s: Seconds from when they were freed to their return.
            share: The part of the group (1: all of it).

        Raises:
            ValueError: A compiled evictor that learns was never told of the class, or a value is out of range.
        """

    def observe_eviction(self, finish_class: int, age_s: float, share: float) -> None:  # noqa: B027 (as above)
        """Learn that a part of a group of blocks was evicted, and had not come back. Else as `observe_return`.

        Args:
            finish_class: The class under which the blocks were freed. An `add` has told it.
            age_s: Seconds from when they were freed to their eviction.
            share: The part of the group (1: all of it).

        Raises:
            ValueError: As `observe_return`.
        """

    def reprice(self, block_ids: Sequence[int], cost_s: float) -> None:  # noqa: B027 (most policies know no costs)
        """Set what the loss of blocks costs until they are freed anew: their KV can be had back without computing it.

        Args:
            block_ids: Any blocks; those that are not free with KV are ignored.
            cost_s: Seconds, above 0.

        Raises:
            ValueError: A compiled evictor was given another cost.
        """

    def forget(self, block_id: int) -> None:  # noqa: B027 (most policies have nothing to forget)
        """Forget what was in a block that is not free here: its KV is lost.

        Args:
            block_id: A block that there is.

        Raises:
            ValueError: A compiled evictor that remembers blocks has no such block.
        """

    @abstractmethod
    def check_integrity(self) -> None:
        """Check the evictor's own records.

        Raises:
            IntegrityError: They contradict each other.
        """
