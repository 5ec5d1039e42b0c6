"""Times copies between a GPU and the host's memory, each way and both at once; and fits them."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from agentcache.errors import InputError
from agentcache.policy.link_profile import LinkSpeed, LinkSpeeds
from agentcache.policy.step_fit import solve_non_negative
from agentcache.profile.gpu_copier import GpuCopier

_COUNTS = (1, 16, 64, 256, 1024, 4096)
_REPEATS = 7


@dataclass(frozen=True, slots=True)
class LinkRow:
    """Seconds for `blocks` of `bytes` each, one way by itself and both at once."""

    blocks: int
    bytes: int
    fetch_s: float
    store_s: float
    both_s: float

    @property
    def all_bytes(self) -> int:
        """The bytes that go each way."""
        return self.blocks * self.bytes

    def gb_s(self, seconds: float) -> float:
        """Return the gigabytes a second, one way."""
        return self.all_bytes / seconds / 1e9


class LinkTimer:
    """Times a copier, by medians of several runs after one that does not count."""

    def __init__(self, copier: GpuCopier, clock: Callable[[], float] = time.perf_counter) -> None:
        self._copier = copier
        self._clock = clock

    def measure(self, blocks: int, block_bytes: int) -> LinkRow:
        """Measure one row."""
        copier = self._copier

        def copy_both() -> None:
            copier.fetch(blocks)
            copier.store(blocks)

        return LinkRow(
            blocks=blocks,
            bytes=block_bytes,
            fetch_s=self._find_seconds(lambda: copier.fetch(blocks)),
            store_s=self._find_seconds(lambda: copier.store(blocks)),
            both_s=self._find_seconds(copy_both),
        )

    def _find_seconds(self, begin: Callable[[], None]) -> float:
        times = []
        for _ in range(_REPEATS + 1):
            start_s = self._clock()
            begin()
            self._copier.wait()
            times.append(self._clock() - start_s)
        return statistics.median(times[1:])


def choose_counts(block_bytes: int, room_bytes: int) -> list[int]:
    """Choose how many blocks the rows copy, of those that there is room for."""
    return [count for count in _COUNTS if count * block_bytes <= room_bytes]


def write_rows(rows: Sequence[LinkRow], file: Path) -> None:
    """Write a line for each row."""
    file.write_text("".join(f"{json.dumps(asdict(row))}\n" for row in rows), encoding="utf-8")


def fit_link(rows: Sequence[LinkRow]) -> LinkSpeeds:
    """Fit the speeds. Raises InputError for rows that no link explains."""
    fetch, store = _fit("fetch", rows, lambda row: row.fetch_s), _fit("store", rows, lambda row: row.store_s)
    both = _fit("both ways", rows, lambda row: row.both_s)
    return LinkSpeeds(fetch=fetch, store=store, both_share=_find_share(fetch, store, both))


def predict_s(speed: LinkSpeed, row: LinkRow) -> float:
    """Return the seconds that a direction takes for the row's blocks by itself."""
    return speed.latency_s + row.all_bytes / (speed.gb_s * 1e9)


def _fit(name: str, rows: Sequence[LinkRow], seconds: Callable[[LinkRow], float]) -> LinkSpeed:
    sizes = np.array([row.all_bytes for row in rows], dtype=np.float64)
    if len(set(sizes)) < 2:
        raise InputError(f"{name}: copies of {len(set(sizes))} sizes do not tell latency and bandwidth apart")
    times = np.array([seconds(row) for row in rows])
    terms = np.stack([np.ones_like(sizes), sizes], axis=1) / times[:, None]
    latency_s, byte_s = solve_non_negative(terms)
    if not byte_s > 0:
        raise InputError(f"{name}: copies of more blocks take no longer, so that there is no bandwidth to be told")
    return LinkSpeed(latency_s=float(latency_s), gb_s=1 / float(byte_s) / 1e9)


def _find_share(fetch: LinkSpeed, store: LinkSpeed, both: LinkSpeed) -> float:
    """Find the share at which the slower direction ends when `both` says: once the other has, it is fast again."""
    slow, fast = sorted(speed.gb_s for speed in (fetch, store))
    # Of a gigabyte each way: what the slower one takes, less what it takes alone after the faster one's end.
    shared_s = 1 / both.gb_s - (1 / slow - 1 / fast)
    return min(1.0, 1 / fast / shared_s) if shared_s > 0 else 1.0
