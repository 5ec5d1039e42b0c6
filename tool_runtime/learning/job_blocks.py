"""Knows jobs by the hashes of their blocks: whose chain a prompt goes on from, and what all jobs under way hold.

A block's hash stands for all tokens up to its end.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Container, Mapping, Sequence
from heapq import nsmallest
from itertools import islice, takewhile
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


# Turns of a job that have a prompt, the latest.
MAX_TURNS = 64


class PromptBlocks:
    """A tree of blocks, in which a prompt is a way from the root. O(blocks that change) each; one takes 250 bytes.

    A block goes by its hash, which stands for all blocks before it as well. Jobs go by number, and have a prompt for
    each of their latest turns that is put: several agents of one have as many.
    """

    def __init__(self, most: int) -> None:
        """Take the number of blocks beyond which the prompts that were put the longest ago are forgotten."""
        self._most = most
        # Of each block the one before it, and how many blocks follow it and prompts end with it.
        self._before: dict[bytes, bytes | None] = {}
        self._uses: dict[bytes, int] = {}
        # By job and turn, the last block of its prompt.
        self._ends: OrderedDict[tuple[int, str], bytes] = OrderedDict()
        self._turns: dict[int, dict[str, None]] = {}

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._before)

    @property
    def jobs(self) -> Collection[int]:
        """The jobs that have prompts."""
        return self._turns.keys()

    def put(self, job: int, turn: str, prompt: Sequence[bytes]) -> None:
        """Note the prompt of a turn, which takes the place of one of that name. O(1) a block that is new."""
        self._use(prompt)
        self._forget(job, turn)
        if prompt:
            self._note(job, turn, prompt[-1])
        while len(self) > self._most and len(self._ends) > 1:
            self._forget(*next(iter(self._ends)))

    def rename(self, job: int, turn: str, name: str) -> None:
        """Note that another turn goes on from this one, whose prompt is its own until that is put."""
        if (block := self._ends.pop((job, turn), None)) is not None:
            del self._turns[job][turn]
            self._forget(job, name)
            self._note(job, name, block)

    def keep(self, job: int, *turns: Container[str]) -> None:
        """Forget the job's prompts but for those of these turns. O(1) a turn, and a block that no other prompt has."""
        for turn in list(self._turns.get(job, ())):
            if not any(turn in each for each in turns):
                self._forget(job, turn)

    def check_integrity(self, jobs: Collection[int]) -> None:
        """Raise RuntimeError unless each block is in use, and each prompt is of one of the `jobs`."""
        followed = (block for block in self._before.values() if block is not None)
        if Counter(self._uses) != Counter(self._ends.values()) + Counter(followed):
            raise RuntimeError("blocks of prompts are counted for other uses than they have")
        if self._ends.keys() != {(job, turn) for job, turns in self._turns.items() for turn in turns}:
            raise RuntimeError("prompts are filed under other jobs than their own")
        if strangers := self._turns.keys() - set(jobs):
            raise RuntimeError(f"blocks are counted of jobs that are not under way: {sorted(strangers)[:5]}")

    def _note(self, job: int, turn: str, block: bytes) -> None:
        self._ends[job, turn] = block
        turns = self._turns.setdefault(job, {})
        turns[turn] = None
        if len(turns) > MAX_TURNS:
            self._forget(job, next(iter(turns)))

    def _forget(self, job: int, turn: str) -> None:
        block = self._ends.pop((job, turn), None)
        if block is not None:
            del self._turns[job][turn]
            if not self._turns[job]:
                del self._turns[job]
        while block is not None:
            self._uses[block] -= 1
            if self._uses[block]:
                return
            del self._uses[block]
            block = self._before.pop(block)

    def _use(self, prompt: Sequence[bytes]) -> None:
        for place in reversed(range(len(prompt))):
            block = prompt[place]
            if block in self._uses:
                self._uses[block] += 1
                return
            self._uses[block] = 1
            self._before[block] = prompt[place - 1] if place else None


# Of a tool that runs for longer the client is more likely gone.
MOST_AWAY_S = 300.0


class TurnCounts:
    """A job counts while a request of it is in the engine or, not for too long, a tool runs for it. Jobs go by number.

    `blocks` are those of the prompts from which they go on; a job that was dropped has none until a turn of it ends.
    """

    def __init__(self, most_blocks: int) -> None:
        """Begin without jobs; `most_blocks` bounds how many blocks are counted."""
        self.blocks = PromptBlocks(most_blocks)
        # By the job's number, its turns.
        self._under_way: dict[int, int] = {}
        self._jobs: Counter[int] = Counter()
        # Since when a job's tool runs and no request of it, in seconds, the longest first.
        self._away: dict[int, float] = {}

    def __len__(self) -> int:
        """Return the number of jobs under way."""
        return len(self._under_way)

    def put(self, job: int, turns: int, *, away_since_s: float | None = None) -> None:
        """Note that the job is under way, and has so many turns behind it.

        `away_since_s` is since when no request of it is in the engine, None where one is. It never goes back.
        """
        self._stop(job)
        self._under_way[job] = turns
        self._jobs[turns] += 1
        if away_since_s is not None:
            self._away[job] = away_since_s

    def drop(self, job: int) -> None:
        """Note that the job is not under way, or no longer."""
        self._stop(job)
        self.blocks.keep(job)

    def drop_away(self, before_s: float, most: int) -> None:
        """Drop up to `most` jobs that have been away since before then."""
        # All are found before any is dropped: a dict finds its first entry behind all that were dropped before it.
        long_away = takewhile(lambda away: away[1] < before_s, self._away.items())
        for job, _ in list(islice(long_away, most)):
            self.drop(job)

    def find_latest(self, count: int) -> int:
        """Return the number of the latest of so many jobs, the oldest first; 0 for none.

        A job whose prompts have no full block counts only while a request of it is in the engine.
        """
        jobs = (job for job in self._under_way if job not in self._away or job in self.blocks.jobs)
        return max(nsmallest(count, jobs), default=0)

    def quantile(self, share: float) -> int:
        """Return the turns behind the job before which `share` of the jobs stand, fewest turns first; 0 without jobs.

        Args:
            share: From 0, the job with the fewest turns, to 1, the one with the most.
        """
        before = min(int(share * len(self)), len(self) - 1)
        for turns in sorted(self._jobs):
            before -= self._jobs[turns]
            if before < 0:
                return turns
        return 0

    def check_integrity(self, turns: Mapping[int, int], away: Collection[int] = ()) -> None:
        """Raise RuntimeError unless just these jobs count, each with its turns; those long `away` may still count."""
        expected = {job: each for job, each in turns.items() if job not in away or job in self._under_way}
        if not self._away.keys() <= self._under_way.keys() or list(self._away.values()) != sorted(self._away.values()):
            raise RuntimeError(f"jobs are away that do not count, or not in order: {self._away}")
        if self._under_way != expected:
            raise RuntimeError(f"jobs under way count as {self._under_way}, they have {expected} turns")
        if self._jobs != Counter(expected.values()):
            raise RuntimeError(f"jobs by turns are {self._jobs}, of {expected}")
        self.blocks.check_integrity(expected.keys())

    def _stop(self, job: int) -> None:
        self._away.pop(job, None)
        turns = self._under_way.pop(job, None)
        if turns is not None:
            self._jobs[turns] -= 1
            if not self._jobs[turns]:
                del self._jobs[turns]
