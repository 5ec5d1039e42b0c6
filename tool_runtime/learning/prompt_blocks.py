"""Counts the blocks of jobs' latest prompts, those that several jobs share once."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence


class PromptBlocks:
    """A tree of blocks, in which a prompt is a way from the root. O(blocks that change) each; one takes 250 bytes.

    A block goes by its hash, which stands for all blocks before it as well. Jobs go by number.
    """

    def __init__(self, most: int) -> None:
        """Take the number of blocks beyond which the jobs that were put the longest ago are forgotten."""
        self._most = most
        # Of each block the one before it, and how many blocks follow it and prompts end with it.
        self._before: dict[bytes, bytes | None] = {}
        self._uses: dict[bytes, int] = {}
        # By the job, the last block of its prompt.
        self._ends: OrderedDict[int, bytes] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._before)

    def put(self, job: int, prompt: Sequence[bytes]) -> None:
        """Note the job's latest prompt, which takes the place of the one before. O(1) a block that is new."""
        self._use(prompt)
        self.drop(job)
        if prompt:
            self._ends[job] = prompt[-1]
        while len(self) > self._most and len(self._ends) > 1:
            self.drop(next(iter(self._ends)))

    def drop(self, job: int) -> None:
        """Forget the job's prompt, if it has one. O(1) a block that no other job has."""
        block = self._ends.pop(job, None)
        while block is not None:
            self._uses[block] -= 1
            if self._uses[block]:
                return
            del self._uses[block]
            block = self._before.pop(block)

    def check_integrity(self, jobs: Collection[int]) -> None:
        """Raise RuntimeError unless each block is in use, and each prompt is of one of the `jobs`."""
        followed = (block for block in self._before.values() if block is not None)
        if Counter(self._uses) != Counter(self._ends.values()) + Counter(followed):
            raise RuntimeError("blocks of prompts are counted for other uses than they have")
        if strangers := self._ends.keys() - set(jobs):
            raise RuntimeError(f"blocks are counted of jobs that are not under way: {sorted(strangers)[:5]}")

    def _use(self, prompt: Sequence[bytes]) -> None:
        for place in reversed(range(len(prompt))):
            block = prompt[place]
            if block in self._uses:
                self._uses[block] += 1
                return
            self._uses[block] = 1
            self._before[block] = prompt[place - 1] if place else None
