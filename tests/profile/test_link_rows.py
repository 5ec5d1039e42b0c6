"""What is timed, on a copier with a clock of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentcache.profile.link_rows import LinkRow, LinkTimer, choose_counts, fit_link, write_rows

BLOCK_BYTES = 10**6
LATENCY_S, FETCH_S, STORE_S = 0.5, 0.25, 0.375
# Beside the other direction. In eighths, so that all sums are exact.
BOTH_TIMES = 2.0
WARM_UP_S = 64.0


class FakeCopier:
    """Copies that begin at once; what is begun for the first time takes longer."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._known: set[tuple[str, int]] = set()
        self._ends: dict[str, float] = {}

    def clock(self) -> float:
        return self.now_s

    def fetch(self, blocks: int) -> None:
        self._begin("fetch", blocks, LATENCY_S + blocks * FETCH_S)

    def store(self, blocks: int) -> None:
        if "fetch" in self._ends:
            self._ends["fetch"] = self.now_s + BOTH_TIMES * (self._ends["fetch"] - self.now_s)
            self._begin("store", blocks, BOTH_TIMES * (LATENCY_S + blocks * STORE_S))
        else:
            self._begin("store", blocks, LATENCY_S + blocks * STORE_S)

    def wait(self) -> None:
        self.now_s = max(self.now_s, *self._ends.values())
        self._ends.clear()

    def _begin(self, name: str, blocks: int, seconds: float) -> None:
        warm_up_s = 0.0 if (name, blocks) in self._known else WARM_UP_S
        self._known.add((name, blocks))
        self._ends[name] = self.now_s + seconds + warm_up_s


def measure(*counts: int) -> list[LinkRow]:
    copier = FakeCopier()
    timer = LinkTimer(copier, copier.clock)
    return [timer.measure(count, BLOCK_BYTES) for count in counts]


@pytest.mark.parametrize("blocks", [1, 64])
def test_each_column_is_what_it_says(blocks: int) -> None:
    (row,) = measure(blocks)
    assert row == LinkRow(
        blocks=blocks,
        bytes=BLOCK_BYTES,
        fetch_s=LATENCY_S + blocks * FETCH_S,
        store_s=LATENCY_S + blocks * STORE_S,
        both_s=BOTH_TIMES * (LATENCY_S + blocks * STORE_S),
    )


def test_what_is_timed_is_what_is_fitted() -> None:
    speeds = fit_link(measure(1, 16, 64, 256))
    assert (speeds.fetch.latency_s, speeds.store.latency_s) == pytest.approx((LATENCY_S, LATENCY_S))
    assert speeds.fetch.gb_s == pytest.approx(BLOCK_BYTES / FETCH_S / 1e9)
    assert speeds.store.gb_s == pytest.approx(BLOCK_BYTES / STORE_S / 1e9)


def test_rates_are_of_one_way() -> None:
    (row,) = measure(64)
    assert row.gb_s(row.both_s) == pytest.approx(64 * BLOCK_BYTES / row.both_s / 1e9)


def test_the_file_has_a_line_for_each_row(tmp_path: Path) -> None:
    rows = measure(1, 16)
    write_rows(rows, tmp_path / "rows.jsonl")
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert [LinkRow(**json.loads(line)) for line in lines] == rows


@pytest.mark.parametrize(
    ("room_blocks", "counts"),
    [(0, []), (1, [1]), (63, [1, 16]), (64, [1, 16, 64]), (10**6, [1, 16, 64, 256, 1024, 4096])],
)
def test_no_more_is_copied_than_there_is_room_for(room_blocks: int, counts: list[int]) -> None:
    assert choose_counts(BLOCK_BYTES, room_blocks * BLOCK_BYTES) == counts
