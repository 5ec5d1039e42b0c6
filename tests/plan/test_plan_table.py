"""The table of a plan: which figures are the best, and whether a terminal shows them whole."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from agentcache.plan.settings import Cell, Outcome
from agentcache.plan.table import HEADINGS, HIT_POINTS, P90_SHARE, find_ttft_share, group_rows, terminal_table

NAMES = ("vllm", "agentcache", "continuum-code")
LONGEST = "agentcache-interactive"


def make_outcome(
    policy: str,
    figures: tuple[float | None, float | None, float | None, float],
    *,
    cell: Cell | None = None,
    problem: str | None = None,
) -> Outcome:
    """Make an outcome of mean, P90 and TTFT P99 in seconds, and hits."""
    return Outcome(cell or Cell(policy, 500_000), 80, *figures, 0.79, 0.81, problem)


def find_bold(*figures: tuple[float | None, float | None, float | None, float]) -> list[list[str]]:
    """Name the policies whose figures are bold, column by column."""
    outcomes = [make_outcome(name, each) for name, each in zip(NAMES, figures, strict=False)]
    (rows,) = group_rows(outcomes).values()
    columns = zip(*([figure.best for figure in row.figures] for row in rows), strict=True)
    return [[name for name, best in zip(NAMES, column, strict=False) if best] for column in columns]


def test_the_best_of_each_column_is_bold() -> None:
    found = find_bold((73.3, 118.0, 7.77, 0.606), (47.8, 82.5, 14.4, 0.806), (61.7, 101.0, 19.7, 0.706))
    assert found == [["agentcache"], ["agentcache"], ["vllm"], ["agentcache"], [], []]


def test_figures_that_are_no_different_are_equally_bold() -> None:
    """Less than half a percent is none, as in the headline."""
    found = find_bold((48.0, 80.0, 5.0, 0.8), (48.2, 80.5, 5.0, 0.795), (60.0, 80.3, 5.02, 0.797))
    assert found == [["vllm", "agentcache"], ["vllm", "continuum-code"], [], ["vllm", "continuum-code"], [], []]


@pytest.mark.parametrize("count", [1, 3])
def test_nothing_is_bold_where_all_are_alike(count: int) -> None:
    assert find_bold(*[(48.0, 80.0, 5.0, 0.8)] * count) == [[]] * 6


def test_a_missing_figure_is_never_the_best() -> None:
    found = find_bold((None, None, None, 0.7), (47.8, 82.5, 14.4, 0.6), (48.8, 83.5, 15.4, 0.5))
    assert found == [["agentcache"], ["agentcache"], ["agentcache"], ["vllm"], [], []]


def test_figures_are_compared_within_engines_and_caches() -> None:
    cells = [Cell("lru", 100), Cell("vllm", 100), Cell("lru", 200), Cell("lru", 100, 50), Cell("lru", 100, engines=2)]
    outcomes = [
        make_outcome(cell.policy, (seconds, 1.0, 1.0, 0.5), cell=cell)
        for cell, seconds in zip(cells, (3.0, 2.0, 1.0, 1.0, 1.0), strict=True)
    ]
    groups = group_rows(outcomes)
    assert {name: [row.figures[0].best for row in rows] for name, rows in groups.items()} == {
        "Cache of 100 tokens": [False, True],
        "Cache of 200 tokens": [False],
        "Cache of 100 tokens, and 50 in the CPU cache": [False],
        "Cache of 100 tokens, in each of 2 engines": [False],
    }


def test_known_errors_stand_beside_what_they_are_of() -> None:
    for policy, share in (("vllm", find_ttft_share("vllm")), ("continuum-code", find_ttft_share("continuum-code"))):
        ((row,),) = group_rows([make_outcome(policy, (100.0, 200.0, 10.0, 0.606))]).values()
        assert [figure.text for figure in row.figures] == [
            "100 ±14",
            f"200 ±{200 * P90_SHARE:.2g}",
            f"10.0 ±{10 * share:.2g}",
            f"60.6 ±{HIT_POINTS}",
            "79.0",
            "81.0",
        ]
    assert find_ttft_share("vllm") < find_ttft_share("continuum-paper")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0412, "0.0412 ±0.0058"), (48.0, "48.0 ±6.7"), (7_300.0, "7,300 ±1,022")]
)
def test_seconds_are_shown_without_an_exponent(seconds: float, text: str) -> None:
    ((row,),) = group_rows([make_outcome("vllm", (seconds, None, None, 0.6))]).values()
    assert [figure.text for figure in row.figures[:2]] == [text, "–"]


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_each_row_in_one_line(width: int) -> None:
    worst = (99.9, 199.0, 61.5, 0.706)
    outcomes = [
        *(make_outcome(name, worst) for name in (*NAMES, LONGEST)),
        make_outcome("asymcache", (None, None, None, 0.0), problem="one engine alone"),
        make_outcome(LONGEST, worst, cell=Cell(LONGEST, 500_000, 250_000, 16)),
    ]
    shown = io.StringIO()
    Console(width=width, file=shown).print(terminal_table(outcomes, width))
    lines = [line.rstrip() for line in shown.getvalue().splitlines()]
    head, rows = lines[:-8], lines[-8:]
    assert [line.split()[0] for line in rows] == ["Cache", *NAMES, LONGEST, "asymcache", "Cache", LONGEST]
    assert rows[0] == "Cache of 500,000 tokens"
    assert rows[5].split() == ["asymcache", "–", "–", "–", "–", "79.0", "81.0"]
    assert rows[6] == "Cache of 500,000 tokens, and 250,000 in the CPU cache, in each of 16 engines"
    assert rows[7].split()[:3] == [LONGEST, "99.9", "±14"]
    assert all(word in " ".join(head) for heading in HEADINGS for word in heading.split())
