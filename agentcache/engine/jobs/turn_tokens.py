"""The tokens around the place where a prompt leaves the last turn of its job, for servers that may show text."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from agentcache.engine.jobs.bounded_table import MAX_BYTES, BoundedTable
from agentcache.engine.jobs.views import ChangeTokens

# Enough for a date and a time of day in digits of a token each.
_TOKENS_AROUND = 16


class TurnTokens:
    """The tokens of turns whose jobs are away, 64 MB of them at most; the oldest turns leave first."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._turns: BoundedTable[tuple[str, array[int]]] = BoundedTable(max_bytes, self._leave)
        self._turns_of: dict[str, set[str]] = {}

    def note(self, turn: str, job: str, tokens: Sequence[int]) -> None:
        """Keep the tokens of a turn of the job: its prompt and its reply."""
        self.take(turn)
        kept = array("i", tokens)
        self._turns_of.setdefault(job, set()).add(turn)
        self._turns.put(turn, (job, kept), len(kept) * kept.itemsize)

    def take(self, turn: str) -> Sequence[int]:
        """Return a turn's tokens, and keep them no longer; empty if they are not here."""
        self._leave(turn)
        known = self._turns.pop(turn)
        return () if known is None else known[1]

    def take_change(
        self, turn: str, prompt: Sequence[int], at_token: int | None, block_size: int
    ) -> ChangeTokens | None:
        """Return what a prompt that leaves the turn at `at_token` has changed, and keep the turn's tokens no longer.

        None where that is not known, or the prompt leaves it nowhere.
        """
        last = self.take(turn)
        return None if at_token is None else cut_change(last, prompt, at_token, block_size)

    def forget(self, job: str) -> None:
        """Forget the turns of a job that is over."""
        for turn in tuple(self._turns_of.get(job, ())):
            self.take(turn)

    def clear(self) -> None:
        """Forget all turns."""
        self._turns.clear()
        self._turns_of.clear()

    def _leave(self, turn: str) -> None:
        if (known := self._turns.get(turn)) is not None:
            of_job = self._turns_of[known[0]]
            of_job.discard(turn)
            if not of_job:
                del self._turns_of[known[0]]


def cut_change(last: Sequence[int], prompt: Sequence[int], at_token: int, block_size: int) -> ChangeTokens | None:
    """Cut out the tokens around the place where the prompt leaves the last turn.

    Args:
        last: The tokens of that turn; empty if they were not kept.
        prompt: Those of the prompt, the same up to `at_token`.
        at_token: Where the first block begins that is not the same.
        block_size: Tokens of a block.

    Returns:
        None also where the block has the same tokens: then what they stand for, such as an image, is another.
    """
    shorter = min(len(last), len(prompt))
    end = min(at_token + block_size, shorter)
    place = next((place for place in range(at_token, end) if last[place] != prompt[place]), end)
    if not last or (place == end and end != shorter):
        return None
    behind = slice(place, place + _TOKENS_AROUND)
    return ChangeTokens(
        at_token=place,
        before=tuple(prompt[max(0, place - _TOKENS_AROUND) : place]),
        was=tuple(last[behind]),
        now=tuple(prompt[behind]),
    )
