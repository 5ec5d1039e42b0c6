"""What a finished turn left in the cache, in short, to tell where the job's next prompt leaves it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from agentcache.engine.jobs.bounded_table import BoundedTable, count_text_bytes
from agentcache.engine.jobs.prompt_end import PromptEnd
from agentcache.engine.jobs.sent_prompt import SentPrompt
from agentcache.engine.jobs.views import ChangeTokens
from tool_runtime.learning.job_table import Parent

# Of a block's hash: enough to tell the blocks of one job apart.
_HASH_BYTES = 8


class Overlap(NamedTuple):
    """Tokens that a prompt shares with the turn it goes on from, and where it leaves that turn if it does.

    `abandoned_tokens` of the turn are not in the prompt. `end` is where the turn's own prompt ended; `sent`, of a turn
    that the prompt leaves, what its client sent; `text` the tokens around the place. None where that is not known.
    """

    shared_tokens: int
    diverged_at: int | None
    abandoned_tokens: int = 0
    end: PromptEnd | None = None
    sent: SentPrompt | None = None
    text: ChangeTokens | None = None


class _Turn(NamedTuple):
    chain: bytes
    end: PromptEnd | None
    sent: SentPrompt | None


class TurnChains:
    """The turns that ended last, by their request; each can be compared with once. They take 64 MB at most."""

    def __init__(self, block_size: int, max_chains: int = 1024) -> None:
        self._block_size = block_size
        self._max_chains = max_chains
        self._turns: BoundedTable[_Turn] = BoundedTable()

    def note(
        self,
        request: str,
        hashes: Sequence[bytes],
        *,
        end: PromptEnd | None = None,
        sent: SentPrompt | None = None,
    ) -> None:
        """Remember the full blocks of a finished request; the oldest turn leaves a full table."""
        turn = _Turn(_abbreviate(hashes), end, sent)
        # A token takes its place in a tuple, and may be an object of its own.
        tail_bytes = 40 * len(end.tail) if end is not None else 0
        sent_bytes = count_text_bytes(sent.texts()) if sent is not None else 0
        self._turns.put(request, turn, len(turn.chain) + tail_bytes + sent_bytes)
        if len(self._turns) > self._max_chains:
            self._turns.drop_oldest()

    def compare(self, request: str | None, hashes: Sequence[bytes]) -> Overlap:
        """Compare the blocks of a prompt with those of the finished request; (0, None) where that is not known."""
        turn = self._turns.pop(request) if request is not None else None
        if turn is None:
            return Overlap(0, None)
        shared = _count_shared(turn.chain, _abbreviate(hashes))
        abandoned = len(turn.chain) // _HASH_BYTES - shared
        tokens = shared * self._block_size
        if not abandoned:
            return Overlap(tokens, None, end=turn.end)
        return Overlap(tokens, tokens, abandoned * self._block_size, turn.end, turn.sent)

    def find_relative(self, requests: Collection[str], hashes: Sequence[bytes]) -> str | Parent:
        """Find the one of these finished requests of which the prompt has all, else most, but at least half.

        Those of which it has as much are siblings with one beginning, and the prompt is another. Whose chain is not
        known, or has no full block, may be the one.
        """
        prompt = _abbreviate(hashes)
        ranks: dict[str, tuple[bool, int]] = {}
        all_known = True
        for request in requests:
            blocks = len(chain := self._find(request)) // _HASH_BYTES
            all_known &= blocks > 0
            shared = _count_shared(chain, prompt)
            if blocks and 2 * shared >= blocks:
                ranks[request] = (shared == blocks, shared)
        nearest = [request for request, rank in ranks.items() if rank == max(ranks.values())]
        if len(nearest) == 1:
            return nearest[0]
        return Parent.NONE if all_known else Parent.UNKNOWN

    def find_extended(self, requests: Collection[str], hashes: Sequence[bytes], min_blocks: int) -> str | None:
        """Find the longest of these finished requests of which the prompt has all, of `min_blocks` or more.

        Of equals the first: nothing that is cached tells them apart.
        """
        prompt = _abbreviate(hashes)
        lengths = {
            request: len(chain) // _HASH_BYTES
            for request in requests
            if prompt.startswith(chain := self._find(request))
        }
        longest = max(lengths, key=lengths.__getitem__, default=None)
        return longest if longest is not None and lengths[longest] >= min_blocks else None

    def clear(self) -> None:
        """Forget all turns."""
        self._turns.clear()

    def _find(self, request: str) -> bytes:
        turn = self._turns.get(request)
        return b"" if turn is None else turn.chain


def _abbreviate(hashes: Sequence[bytes]) -> bytes:
    return b"".join([each[:_HASH_BYTES] for each in hashes])


def _count_shared(one: bytes, other: bytes) -> int:
    """Count the blocks that both begin with. Hashes are chained: after the first difference all differ."""
    low, high = 0, min(len(one), len(other)) // _HASH_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        place = slice((middle - 1) * _HASH_BYTES, middle * _HASH_BYTES)
        if one[place] == other[place]:
            low = middle
        else:
            high = middle - 1
    return low
