"""Soft pins on top of any evictor: pinned blocks are free, and the last to be taken."""

from __future__ import annotations

from collections.abc import Sequence

from agentcache import _evictor
from agentcache.policy.compiled import CompiledEvictor


class PinnedEvictor(CompiledEvictor):
    """Without pins the same victims as `inner`. When `inner` has no block left, the pin worth least loses its own.

    A pin is any number of the caller's from 0; it begins with its first block or value and ends with `release`. It
    protects blocks with KV alone. A block that is used again is not the pin's until it is freed again; one that is
    evicted counts as a loss. Of several pins that left a block the one worth most has it, and the others get it then.
    Evicting n pinned blocks takes O(pins + n log pins).
    """

    def __init__(self, inner: CompiledEvictor, *, num_blocks: int, cheapest_first: bool) -> None:
        """`inner` must be empty, is to have as many blocks, and is called by nobody else from now on.

        A pin loses its blocks from the lowest position on if `cheapest_first`, else in the order in which they came.
        """
        self.inner = inner
        self._pinned = _evictor.Pinned(inner.compiled, num_blocks=num_blocks, cheapest_first=cheapest_first)
        super().__init__(self._pinned)

    def observe_reuse(self, idle_s: float) -> None:
        self.inner.observe_reuse(idle_s)

    def pin_next(self, pin: int | None) -> None:
        """Blocks that are added from now on belong to this pin, or to none."""
        self._pinned.pin_next(pin)

    def set_value(self, pin: int, value: float) -> None:
        """What the loss of one of the pin's blocks would cost (finite, >= 0), compared across pins alone. 0 at first.

        Of pins that are worth the same, the lower number loses first.
        """
        self._pinned.set_value(pin, value)

    def claim(self, pin: int, block_ids: Sequence[int]) -> None:
        """Blocks with KV that are in use are the pin's as well, from when they are freed."""
        self._pinned.claim(pin, block_ids)

    def release(self, pin: int, now_s: float) -> int:
        """End a pin. Blocks left, so many, age on in `inner` as if they had never been pinned, or are other pins'."""
        return self._pinned.release(pin, now_s)

    def release_some(self, pin: int, count: int, now_s: float) -> int:
        """The same for the `count` blocks that the pin would lose first, of which there may be fewer."""
        return self._pinned.release_some(pin, count, now_s)

    def adopt(self, pin: int, block_ids: Sequence[int], now_s: float) -> int:
        """Pin free blocks for a request that is about to use them; other blocks and pinned ones are ignored.

        How many were free. For `inner` they are used again now, and once released they were last used now.
        """
        return self._pinned.adopt(pin, block_ids, now_s)

    def size_of(self, pin: int) -> int:
        """How many blocks a pin has, 0 if there is no such pin."""
        return self._pinned.size_of(pin)

    def claimed_by(self, pin: int) -> int:
        """How many blocks a pin has, or gets when they are freed, without those that it adopted."""
        return self._pinned.claimed_by(pin)

    @property
    def pinned(self) -> int:
        """How many blocks all pins have."""
        return self._pinned.pinned

    @property
    def adopted(self) -> int:
        """How many of them were adopted."""
        return self._pinned.adopted

    def take_losses(self) -> dict[int, int]:
        """How many blocks each pin had or claimed that were evicted since the last call, released pins' too."""
        return self._pinned.take_losses()
