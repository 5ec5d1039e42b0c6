"""Whether jobs want more than the caches hold, and for how many there is room."""

from __future__ import annotations

import math
import random

import pytest
from hand_clock import Clock

from agentcache.policy.price import Demand
from tool_runtime.learning.job_blocks import LONG_TOOL_S
from tool_runtime.learning.runtime import AgentRuntime
from tool_runtime.learning.tool_key import ToolKey

BLOCK = 16
BASH = ToolKey("bash")


def make_demand(blocks: int, clock: Clock | None = None) -> tuple[AgentRuntime, Demand]:
    """There is room for so many blocks."""
    runtime = AgentRuntime(clock=clock or Clock(), estimator=None)
    return runtime, Demand(runtime, BLOCK, room=float(blocks * BLOCK))


def do_turn(runtime: AgentRuntime, job: int, blocks: int) -> None:
    """A turn of a job, whose prompt shares its first two blocks with those of all others, and that then waits."""
    own = [b"%d %d" % (job, place) for place in range(blocks - 2)]
    runtime.jobs.begin(f"{job}", "turn")
    runtime.jobs.finish(f"{job}", "turn", [BASH], prompt=[b"head", b"tail", *own])


def test_a_job_needs_as_much_room_as_jobs_took() -> None:
    """Two jobs take nine blocks each in the mean."""
    runtime, demand = make_demand(30)
    assert demand.count_places() == math.inf, "nothing is known"
    for job in (1, 2):
        do_turn(runtime, job, blocks=10)
    demand.note_jobs()
    assert demand.count_places() == pytest.approx(30 / 9 - 2)


def test_jobs_that_have_just_begun_count_for_what_they_will_take() -> None:
    runtime, demand = make_demand(100)
    do_turn(runtime, 1, blocks=40)
    for _ in range(50):
        demand.note_jobs()
    for job in (1, 2):
        do_turn(runtime, job, blocks=3)
    assert demand.count_places() == pytest.approx(100 / 40 - 2), "they take four blocks, and are to take 40 each"


@pytest.mark.parametrize("after_s", [1.0, LONG_TOOL_S + 1.0])
def test_active_jobs_that_want_more_leave_no_place(after_s: float) -> None:
    """Jobs took few blocks; now one takes 20, and wants more than these by a turn. With its tool it may run long."""
    clock = Clock()
    runtime, demand = make_demand(20, clock)
    do_turn(runtime, 1, blocks=3)
    for _ in range(20):
        demand.note_jobs()
    do_turn(runtime, 1, blocks=20)
    clock.now_s += after_s
    assert demand.exceeds_room()
    assert demand.count_places() == pytest.approx(0.0 if after_s < LONG_TOOL_S else 20 / 3)


def test_a_job_whose_tool_runs_long_takes_no_place() -> None:
    """It may wait for another that waits for room."""
    clock = Clock()
    runtime, demand = make_demand(30, clock)
    do_turn(runtime, 1, blocks=10)
    clock.now_s += 20.0
    do_turn(runtime, 2, blocks=10)
    demand.note_jobs()
    for after_s, active in ((LONG_TOOL_S - 20.0, 2), (1.0, 1), (19.0, 1), (1.0, 0)):
        clock.now_s += after_s
        assert demand.count_places() == pytest.approx(30 / 9 - active)
    runtime.jobs.begin("1", "again")
    assert demand.count_places() == pytest.approx(30 / 9 - 1)
    runtime.jobs.check_integrity()


def test_a_job_without_a_full_block_counts_neither_way() -> None:
    clock = Clock()
    runtime, demand = make_demand(30, clock)
    runtime.jobs.begin("short", "turn")
    runtime.jobs.finish("short", "turn", [BASH])
    clock.now_s += LONG_TOOL_S + 1.0
    do_turn(runtime, 1, blocks=10)
    demand.note_jobs()
    assert demand.count_places() == pytest.approx(30 / 10 - 1)


def test_the_mean_is_that_of_the_latest_turns() -> None:
    """As a list of all looks has it, while that is short; later the first ones count for little."""
    draw, looks = random.Random(0), []
    runtime, demand = make_demand(100)
    for _ in range(500):
        do_turn(runtime, draw.randrange(5), blocks=draw.randrange(2, 40))
        demand.note_jobs()
        blocks = runtime.jobs.turn_counts.blocks
        looks.append(len(blocks) / len(blocks.jobs))
    assert demand.count_places() == pytest.approx(100 * len(looks) / sum(looks) - 5)
