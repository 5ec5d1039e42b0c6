"""How long copies between a GPU and the host's memory take: each way, both ways at once, and beside matrix products."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

_COUNTS = (1, 16, 64, 256, 1024, 4096)
_REPEATS = 7


@dataclass(frozen=True, slots=True)
class LinkRow:
    """Seconds for `blocks` of `bytes` each. `slowdown` is of the products beside which both directions ran."""

    blocks: int
    bytes: int
    fetch_s: float
    store_s: float
    both_s: float
    beside_s: float
    slowdown: float

    @property
    def all_bytes(self) -> int:
        """The bytes that go each way."""
        return self.blocks * self.bytes

    def gb_s(self, seconds: float) -> float:
        """Return the gigabytes a second, one way."""
        return self.all_bytes / seconds / 1e9


class Copier(Protocol):
    """Begins what it is told to, and waits when it is told to."""

    def fetch(self, blocks: int) -> None:
        """Begin to copy so many blocks to the GPU."""

    def store(self, blocks: int) -> None:
        """Begin to copy so many blocks from the GPU."""

    def multiply(self) -> None:
        """Begin products of large matrices, as a prefill does."""

    def wait_for_copies(self) -> None:
        """Wait until copies in both directions have ended."""

    def wait_for_products(self) -> None:
        """Wait until the products have ended."""

    def wait_for_all(self) -> None:
        """Wait until the GPU is idle."""


class LinkTimer:
    """Times a copier, by medians of several runs after one that does not count."""

    def __init__(self, copier: Copier, clock: Callable[[], float] = time.perf_counter) -> None:
        self._copier = copier
        self._clock = clock

    def measure(self, blocks: int, block_bytes: int) -> LinkRow:
        """Measure one row."""
        copier = self._copier

        def copy_both() -> None:
            copier.fetch(blocks)
            copier.store(blocks)

        products_s = self._find_seconds(copier.multiply, copier.wait_for_all)
        beside_s, delayed_s = self._find_seconds_beside(copy_both)
        return LinkRow(
            blocks=blocks,
            bytes=block_bytes,
            fetch_s=self._find_seconds(lambda: copier.fetch(blocks), copier.wait_for_copies),
            store_s=self._find_seconds(lambda: copier.store(blocks), copier.wait_for_copies),
            both_s=self._find_seconds(copy_both, copier.wait_for_copies),
            beside_s=beside_s,
            slowdown=delayed_s / products_s,
        )

    def _find_seconds(self, begin: Callable[[], None], wait: Callable[[], None]) -> float:
        times = []
        for _ in range(_REPEATS + 1):
            self._copier.wait_for_all()
            start_s = self._clock()
            begin()
            wait()
            times.append(self._clock() - start_s)
        return statistics.median(times[1:])

    def _find_seconds_beside(self, copy: Callable[[], None]) -> tuple[float, float]:
        """Return the seconds until all has ended, and those until the products have."""
        wholes, products = [], []
        for _ in range(_REPEATS + 1):
            self._copier.wait_for_all()
            start_s = self._clock()
            copy()
            self._copier.multiply()
            self._copier.wait_for_products()
            products.append(self._clock() - start_s)
            self._copier.wait_for_copies()
            wholes.append(self._clock() - start_s)
        return statistics.median(wholes[1:]), statistics.median(products[1:])


def choose_counts(block_bytes: int, room_bytes: int) -> list[int]:
    """Choose how many blocks the rows copy, of those that there is room for."""
    return [count for count in _COUNTS if count * block_bytes <= room_bytes]


def write_rows(rows: Sequence[LinkRow], file: Path) -> None:
    """Write a line for each row."""
    file.write_text("".join(f"{json.dumps(asdict(row))}\n" for row in rows), encoding="utf-8")


def read_rows(file: Path) -> list[LinkRow]:
    """Read what `write_rows` has written."""
    return [LinkRow(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
