"""Which session a request goes on from, told by the blocks of its prompt when the client does not say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class ChainOwner(NamedTuple):
    """The finished request that left a chain of so many full blocks behind."""

    session: str
    request: str
    blocks: int


class ChainOwners:
    """Finished requests by their last full block, whose hash stands for all tokens up to its end.

    At most `capacity` chains are remembered; the oldest leave first.
    """

    def __init__(self, capacity: int = 10_000) -> None:
        self._capacity = capacity
        # Oldest first.
        self._owners: dict[bytes, ChainOwner] = {}
        self._chains: dict[str, set[bytes]] = {}

    def __len__(self) -> int:
        """Return the number of chains remembered."""
        return len(self._owners)

    def note(self, hashes: Sequence[bytes], prompt_tokens: int, block_size: int, *, session: str, request: str) -> None:
        """File a finished request under the last of `hashes`, those of all its full blocks, prompt and reply.

        Without a token of the reply in that block it is not filed: every job that begins with the same system prompt
        would be taken for its continuation. Whoever filed the same chain before is replaced.
        """
        if len(hashes) * block_size <= prompt_tokens:
            return
        chain = hashes[-1]
        self._drop(chain)
        self._owners[chain] = ChainOwner(session, request, len(hashes))
        self._chains.setdefault(session, set()).add(chain)
        if len(self._owners) > self._capacity:
            self._drop(next(iter(self._owners)))

    def find(self, hashes: Sequence[bytes]) -> ChainOwner | None:
        """Find the owner of the longest chain that a prompt with these full blocks repeats or extends."""
        owners = self._owners
        for block in reversed(hashes):
            if block in owners:
                return owners[block]
        return None

    def forget(self, session: str) -> None:
        """Drop all chains of the session."""
        for chain in self._chains.pop(session, ()):
            del self._owners[chain]

    def _drop(self, chain: bytes) -> None:
        owner = self._owners.pop(chain, None)
        if owner is None:
            return
        chains = self._chains[owner.session]
        chains.remove(chain)
        if not chains:
            del self._chains[owner.session]
