"""Foresees which requests will use each block of the cache, and when.

The recordings tell which request contains which block. When a request is sent depends on what the policy does: as far
as that is certain the runner tells it (`due`). What lies behind is an estimate: the last known time, and for each
request until then the recorded wait and the time that serving it takes an idle engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
from numpy.typing import NDArray

# The hash of a block of tokens, given that of the block before it.
HashBlock = Callable[[bytes | None, Sequence[int]], bytes]
# Of a block that no recorded request contains, such as the last reply of a job.
NO_PATTERN = -1


@dataclass(frozen=True, slots=True)
class FutureJob:
    """A job as far as the cache sees it: `prompts[i]` are the hashes of the full blocks of turn i's prompt.

    `ideal_s[i]` are the seconds from sending turn i to sending turn i + 1 by that estimate.
    """

    job_id: str
    prompts: Sequence[Sequence[bytes]]
    ideal_s: Sequence[float]


def hash_prompts(prompts: Iterable[Sequence[int]], block_size: int, hash_block: HashBlock) -> Iterator[list[bytes]]:
    """Hash each prompt's full blocks, by `hash_block(hash of the block before, tokens)`.

    What a prompt has in common with the one before it is not hashed again.
    """
    before: list[tuple[int, ...]] = []
    hashes: list[bytes] = []
    for prompt in prompts:
        blocks = [tuple(prompt[end - block_size : end]) for end in range(block_size, len(prompt) + 1, block_size)]
        common = next((i for i, (old, new) in enumerate(zip(before, blocks, strict=False)) if old != new), None)
        known = min(len(before), len(blocks)) if common is None else common
        hashes = hashes[:known]
        for block in blocks[known:]:
            hashes.append(hash_block(hashes[-1] if hashes else None, block))
        before = blocks
        yield hashes


class FutureUses:
    """Blocks that the same requests contain have the same future: they form a *pattern*, a number from 0.

    A pattern is a run of blocks of one chain, as every request with a block contains the blocks before it. So the next
    use of a block is never later than that of the blocks behind it.
    """

    def __init__(self, jobs: Sequence[FutureJob]) -> None:
        indices: dict[bytes, int] = {}
        requests = [
            [np.array([indices.setdefault(key, len(indices)) for key in prompt], np.int64) for prompt in job.prompts]
            for job in jobs
        ]
        patterns = _find_patterns(requests, len(indices))
        self._pattern_of: dict[bytes, int] = dict(zip(indices, patterns.tolist(), strict=True))
        self._jobs = {
            job.job_id: _JobFuture(job.ideal_s, [patterns[blocks] for blocks in prompts])
            for job, prompts in zip(jobs, requests, strict=True)
        }
        # One entry for each pattern of each job, with the patterns' entries side by side for the minimum over jobs.
        entries = np.concatenate([np.empty(0, np.int64), *(job.patterns for job in self._jobs.values())])
        self._by_pattern = np.argsort(entries, kind="stable")
        self._first_entries = np.searchsorted(entries[self._by_pattern], np.arange(int(patterns.max(initial=-1)) + 1))
        self._next_use_s: NDArray[np.float64] | None = None

    def pattern_of(self, block_hash: bytes) -> int:
        """Return the block's pattern; NO_PATTERN for a block that no recorded request contains."""
        return self._pattern_of.get(block_hash, NO_PATTERN)

    def due(self, job_id: str, turn: int, time_s: float) -> None:
        """Note that the turns before `turn` are over, and that one will be sent (or was) at `time_s`.

        A request that waits in the engine still needs its blocks: its turn is over when its reply is complete.
        """
        self._jobs[job_id].due(turn, time_s)
        self._next_use_s = None

    def ended(self, job_id: str) -> None:
        """Note that the last turn of the job is over."""
        self._jobs[job_id].ended()
        self._next_use_s = None

    def next_use_s(self) -> NDArray[np.float64]:
        """Return when each pattern's earliest request is expected; infinite if none is, and for NO_PATTERN.

        It may lie in the past: the request then waits in the engine, or runs.
        """
        if self._next_use_s is None:
            entries = np.concatenate([np.empty(0), *(job.next_use_s for job in self._jobs.values())])
            earliest = np.minimum.reduceat(entries[self._by_pattern], self._first_entries)
            self._next_use_s = np.append(earliest, np.inf)
        return self._next_use_s


class _JobFuture:
    """When one job uses its patterns next. Before the first `due` it is not known to come at all."""

    def __init__(self, ideal_s: Sequence[float], prompts: Sequence[NDArray[np.int64]]) -> None:
        """Prepare look-ups. `prompts[i]` are the patterns of the blocks of turn i's prompt."""
        turns = len(prompts)
        self._sent_s = np.array([0.0, *accumulate(ideal_s)][:turns])
        self.patterns: NDArray[np.int64] = np.unique(np.concatenate(prompts))
        # For each turn and pattern, the first turn from that one on whose prompt has the pattern; `turns` if none has.
        has = np.full((turns + 1, len(self.patterns)), turns)
        for turn, prompt in enumerate(prompts):
            has[turn, np.searchsorted(self.patterns, np.unique(prompt))] = turn
        self._next_turn = np.minimum.accumulate(has[::-1])[::-1]
        self.ended()

    def due(self, turn: int, time_s: float) -> None:
        expected_s = np.append(self._sent_s - self._sent_s[turn] + time_s, np.inf)
        self.next_use_s = expected_s[self._next_turn[turn]]

    def ended(self) -> None:
        self.next_use_s = np.full(len(self.patterns), np.inf)


def _find_patterns(requests: Iterable[Iterable[NDArray[np.int64]]], blocks: int) -> NDArray[np.int64]:
    """Find each block's pattern: every request adds a random number of its own to its blocks, equal sums are one."""
    random = np.random.default_rng(0)
    sums = np.zeros(blocks, np.uint64)
    for prompt in chain.from_iterable(requests):
        sums[prompt] += random.integers(0, 2**64, dtype=np.uint64)
    return np.unique(sums, return_inverse=True)[1]
