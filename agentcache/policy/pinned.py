"""Soft pins on top of any evictor: pinned blocks are free, and the last to be taken."""

from __future__ import annotations

from collections.abc import Sequence

from agentcache import _evictor
from agentcache.policy.compiled import CompiledEvictor, compile_evictor
from agentcache.policy.evictor import Evictor


class PinnedEvictor(CompiledEvictor):
    """Without pins the same victims as `inner`. When `inner` has no block left, the pin worth least loses its own.

    A pin is any number of the caller's from 0; it begins with its first block or value and ends with `release`. It
    protects blocks with KV alone: those added with its number in their context, reserved or adopted. A block that is
    used again is not the pin's until it is freed again; one that is evicted counts as a loss. Of several pins that left
    a block the one worth most has it, and the others get it then. Evicting n pinned blocks takes
    O(pins + n log pins).
    """

    def __init__(self, inner: Evictor, *, num_blocks: int, cheapest_first: bool) -> None:
        """Make an evictor without pins around another.

        Args:
            inner: An empty evictor of as many blocks. The caller must not use it from now on.
            num_blocks: How many blocks there are; their ids count from 0.
            cheapest_first: A pin loses its blocks from the lowest position on, else in the order in which they came.

        Raises:
            ValueError: `inner` holds blocks, or does not know as many.
        """
        self.inner = inner
        self._pinned = _evictor.PinnedEvictor(
            compile_evictor(inner), num_blocks=num_blocks, cheapest_first=cheapest_first
        )
        super().__init__(self._pinned)

    def observe_reuse(self, idle_s: float) -> None:
        """Pass it on to `inner`."""
        self.inner.observe_reuse(idle_s)

    def set_value(self, pin: int, value: float) -> None:
        """Say what the loss of one of the pin's blocks would cost, compared across pins alone. 0 at first.

        Of pins that are worth the same, the lower number loses first.

        Args:
            pin: Any number from 0.
            value: In any unit, finite and at least 0.

        Raises:
            ValueError: The pin or the value is out of range.
        """
        self._pinned.set_value(pin, value)

    def reserve(self, pin: int, block_ids: Sequence[int]) -> None:
        """Make blocks with KV that are in use the pin's as well, from when they are freed.

        Args:
            pin: Any number from 0.
            block_ids: Blocks that are not free.

        Raises:
            ValueError: The pin is negative, or a block is free with KV or unknown.
        """
        self._pinned.reserve(pin, block_ids)

    def release(self, pin: int, now_s: float) -> int:
        """End a pin. Its blocks age on in `inner` as if they had never been pinned, or are other pins'.

        Args:
            pin: Any number from 0.
            now_s: The present, in seconds.

        Returns:
            How many blocks it had.

        Raises:
            ValueError: The pin is negative, or `now_s` not finite.
        """
        return self._pinned.release(pin, now_s)

    def release_some(self, pin: int, count: int, now_s: float) -> int:
        """Let go of the `count` blocks that the pin would lose first, as `release` does.

        Returns:
            How many there were: fewer if the pin has fewer.

        Raises:
            ValueError: As `release`.
        """
        return self._pinned.release_some(pin, count, now_s)

    def adopt(self, pin: int, block_ids: Sequence[int], now_s: float) -> int:
        """Pin free blocks for a request that is about to use them; other blocks and pinned ones are ignored.

        For `inner` they are used again now, and once released they were last used now.

        Args:
            pin: Any number from 0.
            block_ids: Any numbers.
            now_s: The present, in seconds.

        Returns:
            How many were free with KV and in no pin.

        Raises:
            ValueError: As `release`.
        """
        return self._pinned.adopt(pin, block_ids, now_s)

    def size_of(self, pin: int) -> int:
        """Return how many blocks a pin has, 0 if there is no such pin."""
        return self._pinned.size_of(pin)

    def reserved_by(self, pin: int) -> int:
        """Return how many blocks a pin has, or gets when they are freed, without those that it adopted."""
        return self._pinned.reserved_by(pin)

    @property
    def pinned(self) -> int:
        """Return how many blocks all pins have."""
        return self._pinned.pinned

    @property
    def adopted(self) -> int:
        """Return how many of those were adopted."""
        return self._pinned.adopted

    @property
    def reservations(self) -> int:
        """Return the pins, each counted once for every set of blocks that just it and the same others get when freed.

        That is what their memory and the time of a `release` grow with, beside the blocks.
        """
        return self._pinned.reservations

    def take_losses(self) -> dict[int, int]:
        """Return how many blocks each pin has lost since the last call, had or reserved; released pins' too."""
        return self._pinned.take_losses()
