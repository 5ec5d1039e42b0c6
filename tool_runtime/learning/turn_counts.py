"""How many turns the jobs under way have behind them."""

from __future__ import annotations

from collections import Counter


class TurnCounts:
    """A job counts while a request of it is in the engine or a tool runs for it. Jobs go by number."""

    def __init__(self) -> None:
        self._turns: dict[int, int] = {}
        self._jobs: Counter[int] = Counter()

    def __len__(self) -> int:
        """Return the number of jobs under way."""
        return len(self._turns)

    def put(self, job: int, turns: int) -> None:
        """Note that the job is under way and has so many turns behind it."""
        if self._turns.get(job) != turns:
            self.drop(job)
            self._turns[job] = turns
            self._jobs[turns] += 1

    def drop(self, job: int) -> None:
        """Note that the job is not under way, or no longer."""
        turns = self._turns.pop(job, None)
        if turns is not None:
            self._jobs[turns] -= 1
            if not self._jobs[turns]:
                del self._jobs[turns]

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

    def check_integrity(self, expected: dict[int, int]) -> None:
        """Raise RuntimeError unless just the `expected` jobs count, each with its turns."""
        if self._turns != expected:
            raise RuntimeError(f"jobs under way count as {self._turns}, they have {expected} turns")
        if self._jobs != Counter(expected.values()):
            raise RuntimeError(f"jobs by turns are {self._jobs}: {Counter(expected.values())} expected")
