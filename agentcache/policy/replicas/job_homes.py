"""Where each job has its KV, and how often it has moved."""

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
