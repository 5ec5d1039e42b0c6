"""How long a job's turn and the tools behind it take."""

from __future__ import annotations

import pytest
from hand_clock import Clock

from tool_runtime.learning.job_blocks import MOST_AWAY_S
from tool_runtime.learning.job_table import Parent
from tool_runtime.learning.runtime import AgentRuntime, Rounds
from tool_runtime.learning.tool_key import HUMAN, ToolKey

BASH = ToolKey("bash")


def test_nothing_is_known_at_first() -> None:
    rounds = Rounds()
    rounds.note_tools(5.0)
    assert rounds.mean_s == 0.0


def test_it_is_the_mean_of_turns_and_of_the_tools_behind_them() -> None:
    rounds = Rounds()
    for turn_s, tools_s in ((1.0, 2.0), (3.0, 6.0)):
        rounds.note_turn(turn_s)
        rounds.note_tools(tools_s)
    assert rounds.mean_s == pytest.approx(6.0, rel=0.01)


def test_the_latest_turns_count() -> None:
    rounds = Rounds()
    for seconds in (100.0, 1.0):
        for _ in range(2000):
            rounds.note_turn(seconds)
    assert rounds.mean_s == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(
    ("calls", "away_s", "counts_s"),
    [([BASH], 4.0, 4.0), ([BASH], 10 * MOST_AWAY_S, MOST_AWAY_S), ([], 60.0, 0.0), ([HUMAN], 60.0, 0.0)],
)
def test_tools_count_and_people_do_not(calls: list[ToolKey], away_s: float, counts_s: float) -> None:
    """Neither holds room for long: a job that waits for a person, or for a tool beyond the bound, is not under way."""
    clock = Clock()
    runtime = AgentRuntime(clock=clock)
    runtime.arrived("job", "first")
    runtime.finished("job", "first", calls)
    runtime.rounds.note_turn(1.0)
    clock.now_s += away_s
    runtime.arrived("job", "second", "first")
    assert runtime.rounds.mean_s == pytest.approx(1.0 + counts_s)


def test_a_gap_that_is_not_certain_tells_nothing() -> None:
    clock = Clock()
    runtime = AgentRuntime(clock=clock)
    for turn in ("a", "b"):
        runtime.arrived("job", turn, Parent.NONE)
    for turn in ("a", "b"):
        runtime.finished("job", turn, [BASH])
        runtime.rounds.note_turn(1.0)
    clock.now_s += 50.0
    runtime.arrived("job", "next")
    assert runtime.rounds.mean_s == pytest.approx(1.0)
