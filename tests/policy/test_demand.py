"""Whether jobs want more than the caches hold, and whether there is room for another."""

from __future__ import annotations

import random

import pytest
from hand_clock import Clock

from agentcache.policy.price import Demand
from tool_runtime.learning.runtime import AgentRuntime

BLOCK = 16


def make_runtime() -> AgentRuntime:
    return AgentRuntime(clock=Clock(), estimator=None)


def end_turn(runtime: AgentRuntime, job: int, blocks: int) -> None:
    """A turn of a job ends, whose prompt shares its first two blocks with those of all others."""
    own = [b"%d %d" % (job, place) for place in range(blocks - 2)]
    runtime.jobs.turn_counts.blocks.put(job, "turn", [b"head", b"tail", *own])


@pytest.mark.parametrize(("begun", "has_room"), [(0, True), (1, False)])
def test_a_job_needs_as_much_room_as_jobs_took(begun: int, has_room: bool) -> None:
    """Two jobs take 9 blocks each in the mean, and there is room for 30: one that has begun counts for as much."""
    runtime = make_runtime()
    demand = Demand(runtime, BLOCK, room=30.0 * BLOCK)
    for job in (1, 2):
        end_turn(runtime, job, blocks=10)
    demand.note_jobs()
    assert demand.has_room(begun) is has_room


def test_jobs_that_have_just_begun_count_for_what_they_will_take() -> None:
    runtime = make_runtime()
    demand = Demand(runtime, BLOCK, room=100.0 * BLOCK)
    end_turn(runtime, 1, blocks=40)
    for _ in range(50):
        demand.note_jobs()
    for job in (1, 2):
        end_turn(runtime, job, blocks=3)
    assert not demand.has_room(0), "they take four blocks, and are to take 40 each"


def test_without_jobs_there_is_room() -> None:
    demand = Demand(make_runtime(), BLOCK, room=1.0)
    demand.note_jobs()
    assert demand.has_room(0)


def test_there_is_no_room_while_jobs_want_more_than_there_is() -> None:
    runtime = make_runtime()
    demand = Demand(runtime, BLOCK, room=20.0 * BLOCK)
    for job in range(8):
        end_turn(runtime, job, blocks=3)
        demand.note_jobs()
    for job in range(8):
        runtime.jobs.turn_counts.blocks.keep(job)
    assert demand.has_room(0)
    end_turn(runtime, 1, blocks=20)
    assert demand.exceeds_room()
    assert not demand.has_room(0)


def test_the_mean_is_that_of_the_latest_turns() -> None:
    """As a list of all looks has it, while that is short; later the first ones count for little."""
    draw, looks = random.Random(0), []
    runtime = make_runtime()
    demands = {room: Demand(runtime, BLOCK, room * BLOCK) for room in range(20, 200)}
    for _ in range(500):
        end_turn(runtime, draw.randrange(5), blocks=draw.randrange(2, 40))
        for demand in demands.values():
            demand.note_jobs()
        blocks = runtime.jobs.turn_counts.blocks
        looks.append(len(blocks) / len(blocks.jobs))
    least = min(room for room, demand in demands.items() if demand.has_room(0))
    assert least == pytest.approx(6 * sum(looks) / len(looks), abs=1.0)
