"""Finds the session that a request goes on from, by the tokens of its prompt, when the client does not say."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

# The last full block of a chain, and the tokens behind it.
_Key = tuple[bytes, tuple[int, ...]]


class ChainOwner(NamedTuple):
    """The finished request that left a chain of so many full blocks behind.

    `prompt_tokens` is the length of its prompt where the chain is the prompt alone, without the reply; otherwise 0.
    """

    session: str
    request: str
    blocks: int
    prompt_tokens: int = 0


class ChainOwners:
    """Finished requests by their last full block, whose hash stands for all tokens up to its end.

    At most `capacity` chains are remembered; the oldest leave first.
    """

    def __init__(self, capacity: int = 20_000) -> None:
        self._capacity = capacity
        # By the last full block, then by how many tokens are behind it, then by these; `_keys` has all of them, the
        # oldest first.
        self._owners: dict[bytes, dict[int, dict[tuple[int, ...], ChainOwner]]] = {}
        self._keys: OrderedDict[_Key, None] = OrderedDict()
        self._chains: dict[str, set[_Key]] = {}

    def __len__(self) -> int:
        """Return the number of chains remembered."""
        return len(self._keys)

    def note(self, hashes: Sequence[bytes], prompt_tokens: int, block_size: int, *, session: str, request: str) -> None:
        """File a finished request under the last of `hashes`, those of all its full blocks, prompt and reply.

        Without a token of the reply in that block it is not filed: every job that begins with the same system prompt
        would be taken for its continuation. An earlier owner of the same chain is replaced.
        """
        if len(hashes) * block_size > prompt_tokens:
            self._file(hashes[-1], (), ChainOwner(session, request, len(hashes)))

    def note_prompt(self, chain: bytes, tail: tuple[int, ...], owner: ChainOwner) -> None:
        """File a finished request under its prompt alone: the last full block of it and the tokens behind.

        Replies come back in other words: without their reasoning, their arguments in other JSON.
        """
        self._file(chain, tail, owner)

    def find(self, hashes: Sequence[bytes], tokens: Sequence[int] = (), block_size: int = 0) -> ChainOwner | None:
        """Find the owner of the longest chain that a prompt with these full blocks repeats or extends.

        Prompts that were filed alone are found for `tokens`, the whole prompt, if that is longer than they are. Looks
        up each of `hashes`, and behind each that is known one tail of each length, however many owners it has.
        """
        owners = self._owners
        for index in range(len(hashes) - 1, -1, -1):
            if hashes[index] in owners:
                found = _choose(owners[hashes[index]], tokens, (index + 1) * block_size)
                if found is not None:
                    return found
        return None

    def forget(self, session: str) -> None:
        """Drop all chains of the session."""
        for key in list(self._chains.get(session, ())):
            self._drop(key)

    def _file(self, chain: bytes, tail: tuple[int, ...], owner: ChainOwner) -> None:
        key = (chain, tail)
        self._drop(key)
        self._owners.setdefault(chain, {}).setdefault(len(tail), {})[tail] = owner
        self._keys[key] = None
        self._chains.setdefault(owner.session, set()).add(key)
        if len(self._keys) > self._capacity:
            self._drop(next(iter(self._keys)))

    def _drop(self, key: _Key) -> None:
        if key not in self._keys:
            return
        del self._keys[key]
        chain, tail = key
        tails = self._owners[chain]
        owner = tails[len(tail)].pop(tail)
        if not tails[len(tail)]:
            del tails[len(tail)]
        if not tails:
            del self._owners[chain]
        chains = self._chains[owner.session]
        chains.remove(key)
        if not chains:
            del self._chains[owner.session]


def _choose(
    owners: dict[int, dict[tuple[int, ...], ChainOwner]], tokens: Sequence[int], behind: int
) -> ChainOwner | None:
    """Choose the owner with the most tokens behind the block that ends at `behind`, all of which the prompt has."""
    for length in sorted(owners, reverse=True):
        owner = owners[length].get(tuple(tokens[behind : behind + length]))
        if owner is not None and (not owner.prompt_tokens or owner.prompt_tokens < len(tokens)):
            return owner
    return None
