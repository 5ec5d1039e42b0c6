"""How many turns the jobs under way have behind them, and how long their contexts are."""

from __future__ import annotations

from collections import Counter


class TurnCounts:
    """A job counts while a request of it is in the engine or a tool runs for it. Jobs go by number.

    `tokens` are those of the prompts that they had last, together.
    """

    def __init__(self) -> None:
        # By the job's number, its turns and the tokens of its last prompt.
        self._under_way: dict[int, tuple[int, int]] = {}
        self._jobs: Counter[int] = Counter()
        self.tokens = 0

    def __len__(self) -> int:
        """Return the number of jobs under way."""
        return len(self._under_way)

    def put(self, job: int, turns: int, tokens: int) -> None:
        """Note that the job is under way, has so many turns behind it, and had so many tokens in its last prompt."""
        if self._under_way.get(job) != (turns, tokens):
            self.drop(job)
            self._under_way[job] = turns, tokens
            self._jobs[turns] += 1
            self.tokens += tokens

    def drop(self, job: int) -> None:
        """Note that the job is not under way, or no longer."""
        known = self._under_way.pop(job, None)
        if known is not None:
            turns, tokens = known
            self._jobs[turns] -= 1
            if not self._jobs[turns]:
                del self._jobs[turns]
            self.tokens -= tokens

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
        if self._under_way != expected:
            raise RuntimeError(f"jobs under way count as {self._under_way}, they have {expected} turns and tokens")
        if self._jobs != Counter(turns for turns, _ in expected.values()):
            raise RuntimeError(f"jobs by turns are {self._jobs}, of {expected}")
        if self.tokens != sum(tokens for _, tokens in expected.values()):
            raise RuntimeError(f"jobs under way have {self.tokens} tokens, of {expected}")
