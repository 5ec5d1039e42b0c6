from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kept_objects import list_kept

from agentcache._evictor import SHARED_CLASS, FreeContext, ReturnTimeEvictor, ReturnWaits
from agentcache.engine.jobs.finish_classes import OVER, PREEMPTED, UNKNOWN, FinishClasses, number_calls
from tool_runtime.learning.durations import Durations, Ended
from tool_runtime.learning.tool_key import HUMAN, ToolKey

BASH = ToolKey("bash")
PYTEST = ToolKey("bash", "pytest")
# What the evictor takes.
MAX_NUMBER = 1023


def test_humans_tools_and_what_is_no_turn_have_different_numbers() -> None:
    classes = number_calls()
    numbers = [UNKNOWN, PREEMPTED, OVER, *map(classes.number, (HUMAN, BASH, ToolKey("read")))]
    assert len(set(numbers)) == len(numbers)
    assert [classes.number(key) for key in (HUMAN, BASH, ToolKey("read"))] == numbers[3:]


def test_a_command_gets_its_own_number_once_it_is_frequent() -> None:
    classes = number_calls()
    tool = classes.number(BASH)
    assert [classes.number(PYTEST) for _ in range(7)] == [tool] * 7
    own = classes.number(PYTEST)
    assert own != tool
    assert {classes.number(PYTEST) for _ in range(9)} == {own}
    assert classes.number(BASH) == tool
    assert classes.number(ToolKey("bash", "make")) == tool


def test_a_command_gets_its_tool_s_number_even_if_it_comes_first() -> None:
    classes = number_calls()
    assert classes.number(PYTEST) == classes.number(ToolKey("bash", "make")) == classes.number(BASH)


def test_out_of_numbers_a_command_is_its_tool_a_new_tool_unknown() -> None:
    """A command then has the number of its tool, and new tools share one."""
    classes = number_calls()
    known = classes.number(BASH)
    numbers = [classes.number(ToolKey(f"tool {count}")) for count in range(2000)]
    given_out = [number for number in numbers if number != UNKNOWN]
    assert len(given_out) == len(set(given_out)) > 400
    assert max(given_out) <= MAX_NUMBER
    assert numbers[-1] == UNKNOWN
    assert {classes.number(PYTEST) for _ in range(20)} == {known}
    assert classes.number(ToolKey("tool 0")) == numbers[0]
    assert classes.number(HUMAN) not in numbers


def test_commands_that_come_once_do_not_fill_the_memory() -> None:
    classes = number_calls()
    tool = classes.number(BASH)
    for count in range(20_000):
        assert classes.number(ToolKey("bash", f"make {count}")) == tool
    assert len(list_kept(classes, ToolKey)) < 5000


keys = st.builds(ToolKey, st.sampled_from("abc"), st.sampled_from(["", "x", "y", "z"]))


@given(st.lists(keys, max_size=200))
def test_a_number_stands_for_one_tool_and_is_never_given_again(ends: list[ToolKey]) -> None:
    classes = number_calls()
    owners: dict[int, ToolKey] = {}
    last: dict[ToolKey, int] = {}
    for key in ends:
        number = classes.number(key)
        owner = owners.setdefault(number, key.coarse)
        assert owner == key.coarse
        if last.get(key, number) != number:
            # Once, from the tool's own to the command's.
            assert last[key] == classes.number(key.coarse)
            assert key != key.coarse
        last[key] = number


class Told:
    """An evictor that has been told how long turns are away by what Durations know of them."""

    def __init__(self) -> None:
        self.durations = Durations()
        self.waits = ReturnWaits(least_wait_s=1.0)
        self.classes = FinishClasses(self.waits, self.durations)

    def observe(self, key: ToolKey, seconds: float, times: int) -> None:
        for _ in range(times):
            self.durations.observe(key, seconds, Ended.RETURNED, 0.0)

    def order(self, *finish_classes: int) -> list[int]:
        """Which goes first of blocks that cost the same, freed together a moment ago."""
        blocks = len(finish_classes)
        evictor = ReturnTimeEvictor(num_blocks=blocks, slope_s=0.0, base_s=1.0, floor_s=1e-6, waits=self.waits)
        for block, finish_class in enumerate(finish_classes):
            evictor.add([block], [16], 0.0, FreeContext(finish_class=finish_class))
        return [finish_classes[block] for block in evictor.order(0.1)]


def test_evictors_are_told_how_long_a_tool_takes() -> None:
    told = Told()
    slow, fast = ToolKey("slow"), ToolKey("fast")
    told.observe(slow, 300.0, 40)
    told.observe(fast, 2.0, 40)
    numbers = [told.classes.number(key) for key in (fast, slow)]
    assert told.order(*numbers) == numbers[::-1]


def test_what_is_learnt_later_is_told_when_a_turn_ends() -> None:
    told = Told()
    usual, other = ToolKey("usual"), ToolKey("other")
    told.observe(usual, 30.0, 40)
    told.observe(other, 60.0, 40)
    numbers = [told.classes.number(key) for key in (usual, other)]
    assert told.order(*numbers) == numbers[::-1]
    told.observe(other, 1.0, 200)
    assert told.order(*numbers) == numbers[::-1], "not told yet"
    told.classes.number(other)
    assert told.order(*numbers) == numbers


def test_unknown_humans_take_longer_than_unknown_tools() -> None:
    told = Told()
    numbers = [told.classes.number(key) for key in (BASH, HUMAN)]
    assert told.order(*numbers) == numbers[::-1]


def test_classes_without_a_tool_stand_by_their_hazards() -> None:
    told = Told()
    told.observe(BASH, 20.0, 40)
    told.observe(BASH, 60.0, 40)
    told.classes.number(BASH)
    by_hazard = [OVER, UNKNOWN, SHARED_CLASS, PREEMPTED]
    assert told.order(*by_hazard[::-1]) == by_hazard
