"""Block hashes of a session's last request, which its next one need not compute again: its beginning is the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.request import Request

HashBlocks = Callable[[Request], list[BlockHash]]
# Tokens that are compared at once: whole lists compare quickly, but say not where they differ.
_COMPARED = 1024


class _Known(NamedTuple):
    tokens: Sequence[int]
    hashes: Sequence[BlockHash]


class KnownHashes:
    """A request's block hasher, as vLLM calls it, around its own. The hashes are the same, token by token.

    Sessions are remembered until they are forgotten.
    """

    def __init__(self, hash_blocks: HashBlocks, block_tokens: int) -> None:
        self._hash_blocks = hash_blocks
        self._block_tokens = block_tokens
        self._latest: dict[str, _Known] = {}

    def hash_blocks(self, request: Request) -> list[BlockHash]:
        """Return the hashes of the request's full blocks that it has none of yet."""
        if request.num_tokens < (len(request.block_hashes) + 1) * self._block_tokens:
            # Most tokens of a reply fill no block.
            return []
        known = self._latest.get(request.session_id) if request.session_id is not None else None
        if known is None or request.block_hashes:
            return self._hash_blocks(request)
        same = count_same(known.tokens, request.all_token_ids)
        # Here, so that what is hashed goes on from them.
        request.block_hashes.extend(known.hashes[: same // self._block_tokens])
        return self._hash_blocks(request)

    def remember(self, request: Request) -> None:
        """Remember a request with its reply, instead of the one before it in its session."""
        if request.session_id is not None:
            self._latest[request.session_id] = _Known(request.all_token_ids, request.block_hashes)

    def forget(self, session_id: str) -> None:
        """Forget a session that is over."""
        self._latest.pop(session_id, None)


def count_same(one: Sequence[int], other: Sequence[int]) -> int:
    """Count the tokens that both begin with."""
    shorter = min(len(one), len(other))
    for start in range(0, shorter, _COMPARED):
        stop = min(start + _COMPARED, shorter)
        if one[start:stop] != other[start:stop]:
            return next(place for place in range(start, stop) if one[place] != other[place])
    return shorter
