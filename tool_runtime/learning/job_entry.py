"""Holds what the table knows of each job, and counts turns and blocks over all jobs under way."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice, takewhile

from tool_runtime.learning.tool_key import HUMAN, ToolKey


class Departure(Enum):
    """Why a job left the table."""

    ENDED = "job over"
    IDLE = "expired"
    CAPACITY = "table full"


@dataclass(frozen=True, slots=True)
class PendingTurn:
    """A finished turn that no request has continued yet. `key` is what the gap behind it is filed under."""

    key: ToolKey
    finished_s: float
    clock_resets: int


@dataclass(frozen=True, slots=True)
class Gap:
    """The turn of `request` waited for `seconds`. Unless `certain`, the duration must train nothing."""

    request: str
    turn: PendingTurn
    seconds: float
    certain: bool


@dataclass(slots=True)
class JobEntry:
    """The table's record of one job. It belongs to the table: read it, do not write it.

    `session` is the job's name in the table, `client_session` what its client calls it: several tenants may use one
    name, and have a job each. `number` is no other job's of the table's, ever. `turns` counts the requests that
    finished, `calls` the tool calls they are known to have made, `failures` those that came to nothing; `prompt_tokens`
    are those of the last that finished. `running` maps requests to their arrival, `pending` finished requests to what
    they wait for, oldest first.
    """

    session: str
    arrival_s: float
    last_active_s: float
    number: int
    client_session: str = ""
    turns: int = 0
    calls: int = 0
    prompt_tokens: int = 0
    failures: int = 0
    is_final: bool = False
    running: dict[str, float] = field(default_factory=dict)
    pending: dict[str, PendingTurn] = field(default_factory=dict)

    @property
    def turns_behind(self) -> int | None:
        """The turns that it has done, whatever came of them; None while nothing runs but, at most, a human thinks."""
        is_under_way = self.running or any(turn.key != HUMAN for turn in self.pending.values())
        return self.turns + self.failures if is_under_way else None


@dataclass(frozen=True, slots=True)
class Departed:
    """A job that left the table, and how long the turns that nothing had continued waited until then."""

    job: JobEntry
    cause: Departure
    unanswered: tuple[Gap, ...]


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
