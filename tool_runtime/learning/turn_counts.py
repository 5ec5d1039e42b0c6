"""How many turns the jobs under way have behind them, and how long their contexts are."""

from __future__ import annotations

from collections import Counter
from itertools import takewhile

# Of a tool that runs for longer the client is more likely gone.
MOST_AWAY_S = 300.0


class TurnCounts:
    """A job counts while a request of it is in the engine or, not for too long, a tool runs for it. Jobs go by number.

    `tokens` are those of the prompts that they had last, together.
    """

    def __init__(self) -> None:
        # By the job's number, its turns and the tokens of its last prompt.
        self._under_way: dict[int, tuple[int, int]] = {}
        self._jobs: Counter[int] = Counter()
        # Since when a job's tool runs and no request of it, in seconds, the longest first.
        self._away: dict[int, float] = {}
        self.tokens = 0

    def __len__(self) -> int:
        """Return the number of jobs under way."""
        return len(self._under_way)

    def put(self, job: int, turns: int, tokens: int, *, away_since_s: float | None = None) -> None:
        """Note that the job is under way, has so many turns behind it, and had so many tokens in its last prompt.

        `away_since_s` is since when no request of it is in the engine, None where one is. It never goes back.
        """
        if self._under_way.get(job) != (turns, tokens):
            self.drop(job)
            self._under_way[job] = turns, tokens
            self._jobs[turns] += 1
            self.tokens += tokens
        self._away.pop(job, None)
        if away_since_s is not None:
            self._away[job] = away_since_s

    def drop(self, job: int) -> None:
        """Note that the job is not under way, or no longer."""
        self._away.pop(job, None)
        known = self._under_way.pop(job, None)
        if known is not None:
            turns, tokens = known
            self._jobs[turns] -= 1
            if not self._jobs[turns]:
                del self._jobs[turns]
            self.tokens -= tokens

    def drop_away(self, before_s: float) -> None:
        """Drop the jobs that have been away since before then."""
        # All are found before any is dropped: a dict finds its first entry behind all that were dropped before it.
        for job, _ in list(takewhile(lambda away: away[1] < before_s, self._away.items())):
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

    def check_integrity(self, expected: dict[int, tuple[int, int]]) -> None:
        """Raise RuntimeError unless just the `expected` jobs count, each with its turns and tokens."""
        if not self._away.keys() <= self._under_way.keys() or list(self._away.values()) != sorted(self._away.values()):
            raise RuntimeError(f"jobs are away that do not count, or not in order: {self._away}")
        if self._under_way != expected:
            raise RuntimeError(f"jobs under way count as {self._under_way}, they have {expected} turns and tokens")
        if self._jobs != Counter(turns for turns, _ in expected.values()):
            raise RuntimeError(f"jobs by turns are {self._jobs}, of {expected}")
        if self.tokens != sum(tokens for _, tokens in expected.values()):
            raise RuntimeError(f"jobs under way have {self.tokens} tokens, of {expected}")
