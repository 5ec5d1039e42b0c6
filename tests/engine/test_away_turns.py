"""Which jobs are about to come back: by what their tools took before, and for how long they have been away."""

from __future__ import annotations

import pytest
from counted_names import CountedName
from hand_clock import Clock

from agentcache.engine.jobs.away_turns import AwayTurn, AwayTurns
from agentcache.engine.jobs.finish_classes import OVER, PREEMPTED, SHARED, UNKNOWN, FinishClasses
from tool_runtime.learning.durations import Durations, Ended
from tool_runtime.learning.tool_key import HUMAN, ToolKey

QUICK, SLOW = ToolKey("quick"), ToolKey("slow")


class Learned:
    """A quick tool has taken 2 s and a slow one 60 s, a hundred times each."""

    def __init__(self) -> None:
        self.clock = Clock()
        durations, self.classes = Durations(), FinishClasses()
        for _ in range(100):
            durations.observe(QUICK, 2.0, Ended.RETURNED, 0.0)
            durations.observe(SLOW, 60.0, Ended.RETURNED, 0.0)
        self.turns = AwayTurns(durations, self.classes, self.clock)
        self.ended: list[tuple[str, bool]] = []
        self.turns.on_end = self._note

    def _note(self, turn: AwayTurn, *, is_back: bool) -> None:
        self.ended.append((turn.owner, is_back))

    def leave(self, owner: str, key: ToolKey) -> None:
        self.turns.leave(owner, owner.partition("/")[0], self.classes.number(key), [b"key"])

    def rank(self, least_chance: float = 0.5) -> list[str]:
        return [turn.owner for turn, _ in self.turns.rank(5.0, least_chance)]


def test_jobs_are_due_when_their_tools_usually_end() -> None:
    learned = Learned()
    learned.leave("slow/0", SLOW)
    learned.clock.now_s += 57.0
    learned.leave("quick/0", QUICK)
    learned.leave("human/0", HUMAN)
    assert set(learned.rank()) == {"quick/0", "slow/0"}
    learned.clock.now_s += 20.0
    assert learned.rank() == [], "both are long overdue"
    assert set(learned.rank(0.0)) == {"quick/0", "slow/0", "human/0"}


def test_what_is_learned_meanwhile_counts() -> None:
    learned = Learned()
    learned.leave("slow/0", SLOW)
    assert learned.rank() == []
    for _ in range(1000):
        learned.turns._durations.observe(SLOW, 5.0, Ended.RETURNED, 0.0)
    learned.clock.now_s += 6.0
    learned.leave("slow/1", SLOW)
    assert learned.rank() == ["slow/1"]


def test_turns_end_once_when_their_job_is_back_or_over() -> None:
    learned = Learned()
    for owner in ("mine/0", "mine/1", "other/0"):
        learned.leave(owner, QUICK)
    learned.turns.come_back("mine/0")
    learned.turns.come_back("mine/0")
    learned.turns.end_job("mine")
    assert learned.ended == [("mine/0", True), ("mine/1", False)]
    assert learned.rank() == ["other/0"]


def test_a_job_s_end_looks_at_its_own_turns_alone() -> None:
    learned = Learned()
    CountedName.comparisons = 0
    for number in range(100):
        learned.turns.leave(f"turn {number}", CountedName(number), learned.classes.number(QUICK), [b"key"])
    for number in range(100):
        learned.turns.end_job(str(number))
    assert learned.ended == [(f"turn {number}", False) for number in range(100)]
    assert CountedName.comparisons <= 200


def test_of_many_turns_the_latest_are_looked_at() -> None:
    learned = Learned()
    owners = [f"job-{number}/0" for number in range(300)]
    for owner in owners:
        learned.leave(owner, QUICK)
    assert set(learned.rank()) == set(owners[-256:])


def test_turn_without_a_full_block_is_nothing_to_bring_back() -> None:
    learned = Learned()
    learned.turns.leave("mine/0", "mine", learned.classes.number(QUICK), [])
    assert learned.rank(0.0) == []


@pytest.mark.parametrize(("finish_class", "chance"), [(OVER, 0.0), (UNKNOWN, 0.0), (PREEMPTED, 1.0), (SHARED, 1.0)])
def test_blocks_of_no_tool_are_wanted_by_nobody_or_at_once(finish_class: int, chance: float) -> None:
    assert Learned().turns.chance(finish_class, 3.0, 5.0) == chance
