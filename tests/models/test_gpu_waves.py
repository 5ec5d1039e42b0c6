"""Which engines of tests/gpu have the GPU at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from published_geometries import FAMILIES, count_pair_gib
from waves import Waves, plan_waves

SIZES = {"a": 20.0, "b": 30.0, "c": 25.0, "d": 90.0, "e": 10.0}


@pytest.mark.parametrize(
    ("room", "waves"),
    [
        (200, [["a", "b", "c", "d", "e"]]),
        (75, [["a", "b", "c"], ["d"], ["e"]]),
        (50, [["a", "b"], ["c"], ["d"], ["e"]]),
    ],
)
def test_a_wave_has_what_fits(room: float, waves: list[list[str]]) -> None:
    assert plan_waves(SIZES, room) == waves


@pytest.mark.parametrize(("room", "count"), [(74, 4), (130, 2)])
def test_published_models_fit_in_few_waves_of_80_or_141_gb(room: float, count: int) -> None:
    sizes = {name: count_pair_gib(family) for name, family in FAMILIES.items()}
    waves = plan_waves(sizes, room)
    assert [sum(sizes[name] for name in wave) < room for wave in waves] == [True] * count


def test_a_wave_ends_before_the_next_starts() -> None:
    events: list[str] = []

    @contextmanager
    def start(name: str) -> Iterator[Any]:
        events.append(f"+{name}")
        yield name
        events.append(f"-{name}")

    with Waves([["a", "b"], ["c"]], start) as waves:
        assert [waves.get(name) for name in ("a", "a", "b", "c")] == ["a", "a", "b", "c"]
    assert events == ["+a", "+b", "-b", "-a", "+c", "-c"]
