"""Keeps the engine that has each job's KV, how often it has moved, and which jobs are still live."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class JobHome:
    """A job's engine. `open` are its requests under way; `reason` is that of its latest placement.

    `answered`: its latest reply called no tool, so it may be over.
    """

    job: str
    engine: int
    last_active_s: float
    moves: int = 0
    reason: str = "new"
    open: int = 0
    answered: bool = False


class JobHomes:
    """The jobs that were active last, at most `capacity` of them beside those with requests under way."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        # Active longest ago first.
        self._homes: OrderedDict[str, JobHome] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of jobs known."""
        return len(self._homes)

    def __iter__(self) -> Iterator[JobHome]:
        """Iterate over the jobs, those active longest ago first."""
        return iter(self._homes.values())

    def find(self, job: str) -> JobHome | None:
        """Find a job's home."""
        return self._homes.get(job)

    def touch(self, home: JobHome, now_s: float) -> None:
        """Note that the job is active, which may be its beginning."""
        home.last_active_s = now_s
        self._homes[home.job] = home
        self._homes.move_to_end(home.job)

    def forget(self, job: str) -> None:
        """Forget a job."""
        self._homes.pop(job, None)

    def pop_surplus(self) -> JobHome | None:
        """Forget the job that was active longest ago if there are too many; None if there are not."""
        if len(self._homes) <= self._capacity:
            return None
        surplus = next((home for home in self if not home.open), None)
        if surplus is not None:
            del self._homes[surplus.job]
        return surplus


# A job lives for so many mean pauses: an exponential pause is longer once in fifty times.
_PAUSES = 4.0
# The mean follows about so many latest pauses. Both are assumed.
_MEMORY = 50.0
# Final answers after which all that was seen of them counts for half. Assumed.
_ANSWERS = 100


class LiveJobs:
    """A job lives while a request of it is under way, and until it pauses for far longer than jobs do.

    A final answer, one without a tool call, ends it, unless jobs mostly go on after such answers: where a human writes
    again, or where the engine has no parser for the model's calls.
    """

    def __init__(self, max_pause_s: float) -> None:
        """Let no job live for longer than `max_pause_s` after its last request; so long before any pause is known."""
        self._max_pause_s = max_pause_s
        self._mean_pause_s = max_pause_s / _PAUSES
        self._answers = 0.0
        self._returns = 0.0
        # Active longest ago first.
        self._jobs: OrderedDict[str, JobHome] = OrderedDict()

    def learn_pause(self, seconds: float) -> None:
        """Learn from a job that is back after a pause. A pause counts as what is waited for at most."""
        self._mean_pause_s += (min(seconds, self._max_pause_s) - self._mean_pause_s) / _MEMORY

    def learn_answer(self) -> None:
        """Learn that a job has got a final answer."""
        self._answers += 1.0
        if self._answers > _ANSWERS:
            self._answers, self._returns = self._answers / 2, self._returns / 2

    def learn_return(self) -> None:
        """Learn that a job goes on after its final answer."""
        self._returns += 1.0

    @property
    def go_on(self) -> bool:
        """Tell whether most jobs go on after a final answer; as long as none has come they are thought to end."""
        return 2.0 * self._returns > self._answers

    def touch(self, home: JobHome) -> None:
        """Note that the job has just been active."""
        self._jobs[home.job] = home
        self._jobs.move_to_end(home.job)

    def leave(self, job: str) -> None:
        """Count the job no longer. May be told again."""
        self._jobs.pop(job, None)

    def pop_idle(self, now_s: float) -> Iterator[JobHome]:
        """Take out the jobs that have been idle for too long."""
        limit_s = min(self._max_pause_s, _PAUSES * self._mean_pause_s)
        while self._jobs:
            home = next(iter(self._jobs.values()))
            if now_s - home.last_active_s <= limit_s:
                return
            if home.open:
                home.last_active_s = now_s
                self.touch(home)
            else:
                self.leave(home.job)
                yield home
