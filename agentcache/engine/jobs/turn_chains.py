"""Keeps what a finished turn left in the cache, in short, to tell where the job's next prompt leaves it."""

from __future__ import annotations

import secrets
from array import array
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from cachetools import FIFOCache
from numpy.typing import NDArray

from agentcache.engine.history_change import has_same_start, repeats_last_messages
from agentcache.engine.marks import SentPrompt, has_reply
from agentcache.engine.request_state import LEAST_TURN_BYTES, MAX_TURN_BYTES, LeftBranch, Overlap, PromptEnd
from agentcache.engine.vllm.types import Request
from tool_runtime.learning.job_table import Parent

# Templates begin a reply by its role, and some by an empty thought: no more tokens than this.
_MAX_REPLY_HEAD = 32


def find_prompt_end(request: Request, block_size: int) -> PromptEnd:
    """Find where the messages end: behind the last end-of-turn token if one is near, else where the prompt does."""
    tokens = request.prompt_token_ids or ()
    end = len(tokens)
    end_of_turn = request.sampling_params.eos_token_id if request.sampling_params is not None else None
    head = tokens[max(1, end - _MAX_REPLY_HEAD) :]
    if end_of_turn is not None and end_of_turn in head:
        end -= head[::-1].index(end_of_turn)
    blocks = end // block_size
    return PromptEnd(blocks, tuple(tokens[blocks * block_size : end]))


# Tokens from the end of a reply by which it is known again, and as many before them, where a client cuts the end off;
# fewer tell nothing. A power of two.
_SAID = 16
# One for each time that runs are joined to runs of twice the length. Secret and drawn at the start, so that a client
# cannot construct two runs of tokens with the same hash.
_FACTORS = [np.uint64(secrets.randbits(64) | 1) for _ in range(_SAID.bit_length() - 1)]


@dataclass(frozen=True)
class Prompt:
    """A prompt that may go on from a turn: its full blocks, its tokens, and what the API server tells of it.

    `roles` are its messages', empty where it has none. `asked` is what it asks, `answered` what the last reply in it
    was asked, `sent` what its client sent.
    """

    hashes: Sequence[bytes]
    tokens: Sequence[int] = ()
    roles: str = ""
    asked: str | None = None
    answered: str | None = None
    agent: str | None = None
    sent: SentPrompt | None = None

    @property
    def may_have_reply(self) -> bool:
        """Tell whether an earlier reply in it may be the model's: others are examples that its client wrote."""
        return not self.roles or has_reply(self.roles)

    @property
    def brings_results(self) -> bool:
        """Tell whether it answers calls, which the model alone can have made."""
        return "t" in self.roles[self.roles.rfind("a") + 1 :]

    @cached_property
    def runs(self) -> NDArray[np.uint64]:
        """The hashes of all `_SAID` tokens in a row."""
        return _hash_runs(array("Q", self.tokens))

    def has(self, said: Sequence[np.uint64]) -> bool:
        """Tell whether it has any of these runs of tokens, given by their hashes."""
        return any(run in self.runs for run in said)


class _Chain:
    """Hashes of a turn's blocks in a row, as one text: apart they would take three times as much."""

    def __init__(self, hashes: Sequence[bytes]) -> None:
        self.text = b"".join(hashes)
        self._size = len(hashes[0]) if hashes else 1

    def __len__(self) -> int:
        return len(self.text) // self._size

    def __getitem__(self, index: int) -> bytes:
        return self.text[index * self._size : (index + 1) * self._size]


class _Turn(NamedTuple):
    """`chain` is None where it is not known any more, `said` what tells the end of the reply; `job` is whose it is."""

    chain: _Chain | None
    end: PromptEnd | None = None
    said: Sequence[np.uint64] = ()
    asked: str | None = None
    agent: str | None = None
    sent: SentPrompt | None = None
    job: str = ""

    @property
    def hashes(self) -> _Chain | tuple[()]:
        """The hashes of its blocks; none where they are not known."""
        return self.chain or ()

    @property
    def num_bytes(self) -> int:
        """Return what it takes, about: a token of its end has a place in a tuple, and may be an object of its own."""
        chain = len(self.chain.text) if self.chain is not None else 0
        tail = len(self.end.tail) if self.end is not None else 0
        texts = filter(None, (self.asked, self.agent, *(self.sent.texts() if self.sent is not None else ())))
        return max(LEAST_TURN_BYTES, chain + 40 * tail + sum(4 * len(text) for text in texts))


_UNKNOWN = _Turn(None)


class TurnChains:
    """The turns that ended last, by their request; each can be compared with once. They take 64 MB at most."""

    def __init__(self, block_size: int, max_bytes: int = MAX_TURN_BYTES) -> None:
        self._block_size = block_size
        self._turns: FIFOCache[str, _Turn] = FIFOCache(max_bytes, getsizeof=lambda turn: turn.num_bytes)
        self.left: list[LeftBranch] = []
        """What nothing goes on from any more, until somebody takes it."""

    def note(
        self, request: str, prompt: Prompt, *, reply: Sequence[int] = (), end: PromptEnd | None = None, job: str = ""
    ) -> None:
        """Remember a finished request by its prompt, with the full blocks of its reply; the oldest leaves a full table.

        `reply` is without a token that ends it.
        """
        said = _find_said(prompt.tokens, reply)
        turn = _Turn(_Chain(prompt.hashes), end, said, prompt.asked, prompt.agent, prompt.sent, job)
        if turn.num_bytes <= self._turns.maxsize:
            self._turns[request] = turn

    def compare(self, request: str | None, prompt: Prompt) -> Overlap:
        """Compare the blocks of a prompt with those of the finished request; (0, None) where that is not known.

        Those that the prompt leaves, as is certain by its messages, are `left` but for what other turns have as well.
        """
        turn = self._turns.pop(request or "", _UNKNOWN)
        if turn.chain is None:
            return Overlap(0, None)
        shared = _count_shared(turn.chain, prompt.hashes)
        abandoned, tokens = len(turn.chain) - shared, shared * self._block_size
        if not abandoned:
            return Overlap(tokens, None, end=turn.end)
        if leaves := _is_certain(turn, prompt):
            self._leave(turn.chain, shared)
        return Overlap(tokens, tokens, abandoned * self._block_size, turn.end, turn.sent, leaves)

    def _leave(self, chain: _Chain, first: int) -> None:
        """Note that nothing goes on from the blocks from `first` on. O(turns, and blocks that are left)."""
        for other in (turn.hashes for turn in self._turns.values()):
            if first < min(len(chain), len(other)) and other[first] == chain[first]:
                first = _count_shared(chain, other)
        if first < len(chain):
            self.left.append(LeftBranch(first, [chain[block] for block in range(first, len(chain))]))

    def leave(self, request: str, first: int) -> None:
        """Note that nothing goes on from the turn, whose blocks before `first` are others' as well."""
        if (chain := self._turns.pop(request, _UNKNOWN).chain) is not None:
            self._leave(chain, first)

    def forget(self, job: str) -> None:
        """Forget the turns of a job that is over."""
        for request in [request for request, turn in self._turns.items() if turn.job == job]:
            del self._turns[request]

    def find_continued(
        self, waiting: Collection[str], prompt: Prompt, owner: str | None = None, answers: Collection[str] = ()
    ) -> str | Parent:
        """Find the turn that a prompt goes on from, of those of its agent that wait.

        The first of these tells: the last reply in the prompt answers what the turn was asked; the prompt has all
        messages of the turn; it has the end of the turn's reply; its client has changed the history before that reply.
        Without an earlier reply of the model's only the second counts, and a summary. Of several turns it is the one of
        which the prompt has most.

        Args:
            waiting: The finished requests that nothing has gone on from.
            prompt: The prompt.
            owner: The finished request with the most messages, waiting or not, of which the prompt has all.
            answers: Those of `waiting` that called no tool.

        Returns:
            The request, which is the owner where the prompt's last reply answers that. UNKNOWN where it may be one of
            those that nothing is known of.
        """
        known = {name: self._turns.get(name, _UNKNOWN) for name in (*waiting, *filter(None, [owner]))}
        turns = {name: turn for name, turn in known.items() if turn is _UNKNOWN or turn.agent == prompt.agent}
        shared = {name: _count_shared(turn.hashes, prompt.hashes) for name, turn in turns.items()}
        waits = {name: turn for name, turn in turns.items() if name in waiting}
        found = (
            [name for name, turn in turns.items() if prompt.answered and turn.asked == prompt.answered]
            or [name for name in waits if name == owner]
            or [name for name, turn in waits.items() if self._has_messages(turn, prompt, shared[name])]
            or [name for name, turn in waits.items() if prompt.may_have_reply and prompt.has(turn.said)]
            or _find_changed(waits, prompt, answers)
        )
        if len(found) > 1:
            return max(found, key=lambda name: (shared[name], prompt.has(turns[name].said)))
        return (
            found[0] if found else _guess(waits, prompt, shared, others=len(waits) < len(waiting) or owner is not None)
        )

    def _has_messages(self, turn: _Turn, prompt: Prompt, shared: int) -> bool:
        return turn.end is not None and turn.end.is_in(prompt.tokens, shared, self._block_size)

    def reset(self) -> None:
        """Forget what the turns left in the cache."""
        self.left.clear()
        for request, turn in list(self._turns.items()):
            self._turns[request] = turn._replace(chain=None)


def _find_changed(waits: Mapping[str, _Turn], prompt: Prompt, answers: Collection[str]) -> list[str]:
    """Find the turn whose history the client has changed before its reply, or all that the prompt may be a summary of.

    A summary is the text of a reply that called nothing, now in the message of another role.
    """
    alike = {name: turn for name, turn in waits.items() if has_same_start(turn.sent, prompt.sent)}
    if not prompt.may_have_reply:
        return [name for name, turn in alike.items() if name in answers and prompt.has(turn.said)]
    found = [name for name, turn in alike.items() if repeats_last_messages(turn.sent, prompt.sent)]
    return found if len(found) == 1 else []


def _is_certain(turn: _Turn, prompt: Prompt) -> bool:
    """Tell whether the turn's reply, in whatever words, is in the prompt: one that is not may be asked for again."""
    if prompt.answered and turn.asked == prompt.answered:
        return True
    is_alike = has_same_start(turn.sent, prompt.sent)
    return is_alike and (prompt.has(turn.said) or repeats_last_messages(turn.sent, prompt.sent))


def _guess(waits: Mapping[str, _Turn], prompt: Prompt, shared: Mapping[str, int], *, others: bool) -> str | Parent:
    """Guess which of the turns it may be of which the prompt has neither messages nor reply as they were.

    Calls are answered in the only turn that waits. A prompt without messages, whose beginning may be no more than what
    all have, goes on from the turn of which it has all blocks, else most, but at least half. `others`: it may as well
    go on from a turn that is none of these.
    """
    if prompt.brings_results and len(waits) == 1:
        return next(iter(waits))
    if others or not prompt.may_have_reply:
        return Parent.NONE
    ranks = {}
    for name, turn in waits.items():
        blocks = len(turn.hashes)
        if not prompt.roles and blocks and 2 * shared[name] >= blocks:
            ranks[name] = shared[name] == blocks, shared[name]
    nearest = [name for name, rank in ranks.items() if rank == max(ranks.values())]
    if len(nearest) == 1:
        return nearest[0]
    may_be = [name for name, turn in waits.items() if not turn.chain and not (turn.asked and prompt.answered)]
    return Parent.UNKNOWN if may_be and (not prompt.roles or len(waits) == 1) else Parent.NONE


def _find_said(prompt: Sequence[int], reply: Sequence[int]) -> Sequence[np.uint64]:
    """Hash the last runs of the reply, but for those that tell nothing."""
    if len(reply) < _SAID:
        return ()
    tokens = array("Q", prompt)
    tokens.extend(reply[-2 * _SAID :])
    runs = _hash_runs(tokens)
    before = runs[: max(0, len(prompt) - _SAID + 1)]
    # What it has said before, or had as an example, is in prompts of others as well.
    return [run for run in (runs[-1], *runs[len(prompt) : -_SAID]) if run not in before]


def _hash_runs(tokens: array[int]) -> NDArray[np.uint64]:
    if len(tokens) < _SAID:
        return np.zeros(0, np.uint64)
    hashes = np.frombuffer(tokens, np.uint64)
    for doubled, factor in enumerate(_FACTORS):
        length = 2**doubled
        hashes = hashes[:-length] * factor + hashes[length:]
    return hashes


def _count_shared(one: _Chain | Sequence[bytes], other: _Chain | Sequence[bytes]) -> int:
    """Count the blocks that both begin with. Hashes are chained: after the first difference all differ."""
    return bisect_left(range(min(len(one), len(other))), True, key=lambda block: one[block] != other[block])
