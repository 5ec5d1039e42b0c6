"""The figures of the house (`benchmarks/house.py`) grow no more: a change that makes one smaller sets it here."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
# Those that are read from the sources. Files that import vLLM elsewhere have an import contract (pyproject.toml).
FIGURES = {
    "count_replaced": 11,
    "count_internals": 77,
    "count_none_tests": 0,
    "count_late_slots": 0,
    "count_knobs": 28,
    "count_terms": 49,
    "count_pokes": 51,
}
# The others may grow so far.
LINES = {"engine": 10_900, "product": 34_930, "scheduler": 250}


@pytest.fixture(scope="module")
def house() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
        return runpy.run_path(str(BENCHMARKS / "house.py"))


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_as_small_as_they_were(house: dict[str, Any], name: str) -> None:
    figure = house[name]()
    assert figure.count == FIGURES[name], (figure.rule, figure.found)


@pytest.mark.parametrize(("cpu_cache", "most"), [(False, 31), (True, 38)])
def test_a_turn_passes_few_modules(house: dict[str, Any], *, cpu_cache: bool, most: int) -> None:
    figure = house["count_turn_modules"](cpu_cache=cpu_cache)
    assert 10 < figure.count <= most, figure.found


def test_the_house_is_no_larger(house: dict[str, Any]) -> None:
    files = {
        "engine": house["list_modules"](house["ENGINE"]),
        "product": house["list_product"](),
        "scheduler": [house["ENGINE"] / "scheduler.py"],
    }
    for part, most in LINES.items():
        assert house["count_lines"](files[part]) <= most, part
