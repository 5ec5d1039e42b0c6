"""Prices the eviction of a job's KV where some of it is kept in the CPU cache and the rest is recomputed."""

from __future__ import annotations

from typing import Protocol

from agentcache.policy.cost import RecomputeCost

# After so many blocks all that was seen counts for half.
_WINDOW = 20_000


class BlockPrice(Protocol):
    """What losing a block costs."""

    def at(self, position: float) -> float:
        """Return the seconds for the block that ends `position` tokens into its sequence."""
        ...


class ReturnPrice:
    """Fetching or computing again, by the share of what jobs came back for that had to be computed."""

    def __init__(self, compute: RecomputeCost, fetch_s: float, *, size_ratio: float) -> None:
        """Take what computing and fetching a block cost, and the size of the host's cache over that of the GPU.

        Before anything is seen, a host cache of twice the GPU's is taken to lose nothing, and none to keep nothing.
        """
        self._compute = compute
        self._fetch_s = fetch_s
        self.size_ratio = size_ratio
        self._lost = _WINDOW / 2 * max(0.0, 1 - size_ratio / 2)
        self._seen = _WINDOW / 2
        self._learns = True

    @property
    def lost_share(self) -> float:
        """Return the share of evicted blocks that jobs came back for and the CPU cache did not have."""
        return self._lost / self._seen

    def at(self, position: float) -> float:
        """As in the contract."""
        return self.lost_share * self._compute.at(position) + (1 - self.lost_share) * self._fetch_s

    def note_lost(self, blocks: int) -> None:
        """Note evicted blocks that are computed again."""
        self._note_seen(blocks, lost=blocks)

    def note_kept(self, blocks: int) -> None:
        """Note evicted blocks that were fetched."""
        self._note_seen(blocks)

    def settle(self) -> None:
        """Keep the share as it is: lost blocks are noted no more, so kept ones would make it fall to nothing."""
        self._learns = False

    def _note_seen(self, blocks: int, lost: int = 0) -> None:
        if not self._learns:
            return
        self._lost += lost
        self._seen += blocks
        if self._seen >= _WINDOW:
            self._seen /= 2
            self._lost /= 2
