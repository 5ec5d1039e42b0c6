"""Which blocks the jobs under way have used: when one is over, nobody comes back for what it alone has used."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from itertools import filterfalse

from agentcache.errors import IntegrityError

# Blocks that are remembered, for each block of the caches, once for each job: what was used before is lost by now.
_CACHES = 4


class JobBlocks:
    """Knows jobs by their number and blocks by their hash. O(1) a block; one takes some 200 bytes.

    The jobs that have asked for nothing the longest are forgotten first. What they share with others counts as these
    others' alone.
    """

    def __init__(self, num_blocks: int) -> None:
        """Take the blocks of all caches together."""
        self._capacity = _CACHES * num_blocks
        # Of each job, in the order in which they came.
        self._used: OrderedDict[int, dict[bytes, None]] = OrderedDict()
        # How many jobs have used a block.
        self._users: Counter[bytes] = Counter()
        self._noted = 0

    def note(self, job: int, hashes: Iterable[bytes]) -> None:
        """Note that a request of the job has these blocks, or wants them."""
        used = self._used.setdefault(job, {})
        self._used.move_to_end(job)
        new = dict.fromkeys(filterfalse(used.__contains__, hashes))
        used.update(new)
        self._users.update(new.keys())
        self._noted += len(new)
        while self._noted > self._capacity and len(self._used) > 1:
            self.end(next(iter(self._used)))

    def end(self, job: int) -> list[bytes]:
        """Forget the job. Return the blocks that it has used and no other."""
        used = self._used.pop(job, {})
        self._noted -= len(used)
        self._users.subtract(used.keys())
        alone = [each for each in used if not self._users[each]]
        for each in alone:
            del self._users[each]
        return alone

    def check_integrity(self) -> None:
        """Raise IntegrityError when the counts are not those of the jobs."""
        if self._users != Counter(each for used in self._used.values() for each in used):
            raise IntegrityError("blocks are counted for other jobs than have used them")
        if self._noted != self._users.total():
            raise IntegrityError(f"{self._noted} blocks of jobs are noted, {self._users.total()} counted")
