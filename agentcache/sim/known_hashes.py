"""Keeps block hashes, so that a session's next request, which begins as its last, computes few anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentcache.engine.vllm.base import VllmConfig, get_hash_fn_by_name
from agentcache.engine.vllm.types import BlockHash, Request, init_none_hash

HashBlocks = Callable[[Request], list[BlockHash]]
# Tokens that are compared at once: whole lists compare quickly, but say not where they differ.
_COMPARED = 1024


def choose_hash(config: VllmConfig) -> Callable[[Any], bytes]:
    """Return the function that hashes blocks, and have this process begin hashes by it, as an engine core does."""
    hash_function = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
    init_none_hash(hash_function)
    return hash_function


@dataclass(frozen=True, slots=True)
class MadeHashes:
    """What a request's blocks hash to: the first `same` as in the request `before` it, of its session, then `own`."""

    same: int = 0
    before: MadeHashes | None = None
    own: list[BlockHash] = field(default_factory=list)

    def list_same(self) -> list[BlockHash]:
        """List the hashes that the request before it has as well."""
        parts, wanted, made = [], self.same, self.before
        while wanted and made is not None:
            parts.append(made.own[: max(0, wanted - made.same)])
            wanted, made = min(wanted, made.same), made.before
        return [each for part in reversed(parts) for each in part]


class KnownHashes:
    """A request's block hasher, as vLLM calls it, around its own. The hashes are the same, token by token.

    Sessions are remembered until they are forgotten. `kept` has the hashes of earlier simulations by their requests'
    id, and gets those of this one: the tokens of a request that comes again must be the same. The one before it need
    not be: a session may have moved between engines then, and may now.
    """

    def __init__(self, hash_blocks: HashBlocks, block_tokens: int, kept: dict[str, MadeHashes] | None = None) -> None:
        self._hash_blocks = hash_blocks
        self._block_tokens = block_tokens
        self._kept = kept
        self._latest: dict[str, tuple[Request, MadeHashes]] = {}
        # Of the requests that have begun, by their id.
        self._made: dict[str, MadeHashes] = {}

    def hash_blocks(self, request: Request) -> list[BlockHash]:
        """Return the hashes of the request's full blocks that it has none of yet."""
        hashes = request.block_hashes
        full_blocks = request.num_tokens // self._block_tokens
        if not request.num_output_tokens:
            # vLLM asks for the first time when it makes the request: the prompt is all there is.
            made = self._begin(request)
            # Here, so that what is hashed goes on from them.
            hashes.extend(made.list_same())
        elif full_blocks == len(hashes):
            # Most tokens of a reply fill no block.
            return []
        else:
            made = self._made[request.request_id]
        done = len(hashes) - made.same
        wanted = full_blocks - made.same
        if wanted > len(made.own):
            assert done == len(made.own)
            made.own.extend(self._hash_blocks(request))
        return made.own[done:wanted]

    def _begin(self, request: Request) -> MadeHashes:
        made = None if self._kept is None else self._kept.get(request.request_id)
        if made is None:
            latest = None if request.session_id is None else self._latest.get(request.session_id)
            if latest is None:
                made = MadeHashes()
            else:
                earlier, before = latest
                same = count_same(earlier.all_token_ids, request.all_token_ids)
                made = MadeHashes(same // self._block_tokens, before)
            if self._kept is not None:
                self._kept[request.request_id] = made
        self._made[request.request_id] = made
        return made

    def remember(self, request: Request) -> Request | None:
        """Remember a request with its reply, instead of the one before it in its session, which is returned."""
        if request.session_id is None:
            return None
        latest = self._latest.get(request.session_id)
        self._latest[request.session_id] = request, self._made[request.request_id]
        return None if latest is None else latest[0]

    def ended(self, request_id: str) -> None:
        """Note that a request is over: no more of its tokens will come."""
        self._made.pop(request_id, None)

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
