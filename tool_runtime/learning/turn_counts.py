"""How many turns the jobs under way have behind them, and how many blocks their contexts have together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from itertools import islice, takewhile

from tool_runtime.learning.prompt_blocks import PromptBlocks

# Of a tool that runs for longer the client is more likely gone.
MOST_AWAY_S = 300.0


class TurnCounts:
    """A job counts while a request of it is in the engine or, not for too long, a tool runs for it. Jobs go by number.

    `blocks` are those of the prompts that they had last; a job that was dropped has none until a turn of it ends.
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
        self.blocks.drop(job)

    def drop_away(self, before_s: float, most: int) -> None:
        """Drop up to `most` jobs that have been away since before then."""
        # All are found before any is dropped: a dict finds its first entry behind all that were dropped before it.
        long_away = takewhile(lambda away: away[1] < before_s, self._away.items())
        for job, _ in list(islice(long_away, most)):
            self.drop(job)

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
