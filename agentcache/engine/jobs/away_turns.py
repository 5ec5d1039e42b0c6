"""What jobs have left that wait for their tools, and how likely each of them is to be back soon."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol

from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId

from agentcache.engine.jobs.bounded_table import BoundedTable
from agentcache.engine.jobs.finish_classes import OVER, UNKNOWN, FinishClasses
from tool_runtime.learning.durations import Durations
from tool_runtime.learning.survival import SurvivalCurve

# A curve costs a sort of its samples, and changes little in so many seconds.
_KEEP_CURVE_S = 5.0
# So many are looked at: 2 ms. Who is back soon has mostly left lately.
_MOST_RANKED = 256
# Bytes of a block's key that no cache holds any more, and the limit for all turns: room for 200,000 tokens in each of
# the turns that are looked at.
_KEY_BYTES = 80
_MAX_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True, eq=False)
class AwayTurn:
    """`owner` is the finished request, `keys` are those of its full blocks, in order."""

    owner: str
    job: str
    finish_class: int
    left_s: float
    keys: Sequence[BlockHashWithGroupId]


class EndNote(Protocol):
    """Told that a turn is away no more."""

    def __call__(self, turn: AwayTurn, *, is_back: bool) -> None:
        """Note it. `is_back`: its job goes on from it; else the job is over."""
        ...


def _note_nothing(turn: AwayTurn, *, is_back: bool) -> None:
    """Nobody prefetches."""


class AwayTurns:
    """Turns from their end until their job goes on from them, or is over. They take 256 MB at most."""

    def __init__(self, durations: Durations, classes: FinishClasses, clock: Callable[[], float]) -> None:
        self.on_end: EndNote = _note_nothing
        """Told of each turn that is away no more."""
        self._durations = durations
        self._classes = classes
        self._clock = clock
        # By their owner; the owners by their job.
        self._turns: BoundedTable[AwayTurn] = BoundedTable(_MAX_BYTES, partial(self._end, is_back=False))
        self._owners: dict[str, dict[str, None]] = {}
        # By the finish class, with when it was made.
        self._curves: dict[int, tuple[SurvivalCurve, float]] = {}

    def leave(self, owner: str, job: str, finish_class: int, keys: Sequence[BlockHashWithGroupId]) -> None:
        """Note that a turn has ended with calls of this class, or with an answer."""
        if keys:
            turn = AwayTurn(owner, job, finish_class, self._clock(), keys)
            self._owners.setdefault(job, {})[owner] = None
            self._turns.put(owner, turn, len(keys) * _KEY_BYTES)

    def come_back(self, owner: str) -> None:
        """Note that the job goes on from this turn."""
        self._end(owner, is_back=True)
        self._turns.pop(owner)

    def end_job(self, job: str) -> None:
        """Note that the job is over. O(turns of the job)."""
        for owner in list(self._owners.get(job, ())):
            self._end(owner, is_back=False)
            self._turns.pop(owner)

    def rank(self, within_s: float, least_chance: float) -> list[tuple[AwayTurn, float]]:
        """List the turns whose jobs are back within so many seconds by at least this chance, the likeliest first.

        Of many turns, those that have left last.
        """
        now_s = self._clock()
        latest = islice(self._turns.latest(), _MOST_RANKED)
        chances = [(turn, self.chance(turn.finish_class, now_s - turn.left_s, within_s)) for turn in latest]
        likely = [(turn, chance) for turn, chance in chances if chance >= least_chance]
        return sorted(likely, key=lambda each: -each[1])

    def chance(self, finish_class: int, age_s: float, within_s: float) -> float:
        """Return the chance that who left blocks of this class so long ago is back for them within so many seconds.

        0 where nobody is known to come back, 1 for what several jobs or a preempted request want.
        """
        if finish_class in (OVER, UNKNOWN):
            return 0.0
        curve = self._find_curve(finish_class)
        return 1.0 if curve is None else curve.returned_within(within_s, age_s)

    def _end(self, owner: str, *, is_back: bool) -> None:
        if (turn := self._turns.get(owner)) is not None:
            owners = self._owners[turn.job]
            del owners[owner]
            if not owners:
                del self._owners[turn.job]
            self.on_end(turn, is_back=is_back)

    def _find_curve(self, finish_class: int) -> SurvivalCurve | None:
        key = self._classes.key_of(finish_class)
        if key is None:
            return None
        curve, made_s = self._curves.get(finish_class, (None, 0.0))
        if curve is None or self._clock() - made_s > _KEEP_CURVE_S:
            curve = self._durations.history(key).curve
            self._curves[finish_class] = curve, self._clock()
        return curve
