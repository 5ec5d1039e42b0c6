"""What is kept of gaps that are filed under one key."""

from __future__ import annotations

import copy

import numpy as np

from tool_runtime.learning.survival import Floats

# What is learned stays finite, also from a file that somebody has written: counts and sums that a float holds exactly.
MAX_COUNT = 2**53
MAX_TOTAL_S = 2.0**53


class GapRecord:
    """The latest samples in a ring, and the count and sum of all returns ever."""

    def __init__(self, max_samples: int) -> None:
        self.count = 0
        self.total_s = 0.0
        self._kept = 0
        self._seconds = np.zeros(max_samples)
        self._at_s = np.zeros(max_samples)
        self._returned = np.zeros(max_samples, dtype=np.bool_)

    def add(self, seconds: float, at_s: float, returned: bool) -> None:
        """Take a sample of a gap, seen at `at_s`: it lasted `seconds`, or longer where it has not `returned`."""
        if returned:
            self.count_returns(1, seconds)
        self.keep(seconds, at_s, returned)

    def count_returns(self, count: int, total_s: float) -> None:
        """Count returns after `total_s` seconds together."""
        self.count = min(self.count + count, MAX_COUNT)
        self.total_s = min(self.total_s + total_s, MAX_TOTAL_S)

    def keep(self, seconds: float, at_s: float, returned: bool) -> None:
        """Take a sample that the count and sum hold already."""
        slot = self._kept % self._seconds.size
        self._seconds[slot], self._at_s[slot], self._returned[slot] = seconds, at_s, returned
        self._kept += 1

    def copy(self) -> GapRecord:
        """Copy the record; what one takes later the other has not."""
        twin = copy.copy(self)
        twin._seconds, twin._at_s, twin._returned = self._seconds.copy(), self._at_s.copy(), self._returned.copy()
        return twin

    def join(self, other: GapRecord) -> GapRecord:
        """Make a record of both, which takes no more samples."""
        joined = GapRecord(0)
        joined.count_returns(self.count + other.count, self.total_s + other.total_s)
        joined._seconds = np.concatenate([self.seconds, other.seconds])
        joined._at_s = np.concatenate([self.at_s, other.at_s])
        joined._returned = np.concatenate([self.returned, other.returned])
        joined._kept = joined.size
        return joined

    @property
    def size(self) -> int:
        """The most samples that it keeps."""
        return int(self._seconds.size)

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing was counted or kept."""
        return not self.count and not self._kept

    @property
    def seconds(self) -> Floats:
        """The seconds of the samples that are kept."""
        return self._seconds[: self._kept]

    @property
    def at_s(self) -> Floats:
        """When each of them was seen."""
        return self._at_s[: self._kept]

    @property
    def returned(self) -> np.typing.NDArray[np.bool_]:
        """Which of them are of gaps that ended; the others lasted longer."""
        return self._returned[: self._kept]

    @property
    def returns_s(self) -> Floats:
        """The seconds of those that ended, ascending."""
        return np.sort(self.seconds[self.returned])

    def state(self, as_of_s: float) -> tuple[int, float, tuple[tuple[float, float, bool], ...]]:
        """Return the count, the sum, and the samples as `RecordState` has them, as old as at `as_of_s`."""
        oldest_first = np.argsort(self.at_s, kind="stable")
        samples = tuple(
            (float(self.seconds[index]), float(as_of_s - self.at_s[index]), bool(self.returned[index]))
            for index in oldest_first
        )
        return self.count, self.total_s, samples
