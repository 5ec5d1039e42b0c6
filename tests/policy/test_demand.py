"""Whether jobs want more than the caches hold, and for how many there is room."""

from __future__ import annotations

import math
import random

import pytest
from hand_clock import Clock

from agentcache.policy.price import Demand
from tool_runtime.learning.job_blocks import MOST_AWAY_S
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


@pytest.mark.parametrize(("blocks", "latest"), [(42, 4), (41, 3), (32, 3), (31, 2), (11, 1), (10, 0)])
def test_a_job_needs_as_much_room_as_jobs_took(blocks: int, latest: int) -> None:
    """Four jobs took ten blocks and a half each in the mean; now they take fewer."""
    runtime, demand = make_demand(blocks)
    assert demand.find_room().latest_job == math.inf, "nothing is known"
    for job in range(4):
        do_turn(runtime, job, blocks=12)
    demand.note_jobs()
    for job in range(4):
        do_turn(runtime, job, blocks=3)
    assert demand.find_room() == (latest, 10.5 * BLOCK)


def test_jobs_that_have_just_begun_count_for_what_they_will_take() -> None:
    runtime, demand = make_demand(100)
    do_turn(runtime, 0, blocks=40)
    for _ in range(50):
        demand.note_jobs()
    for job in (1, 2):
        do_turn(runtime, job, blocks=3)
    assert demand.find_room().latest_job == 2, "they take four blocks, and are to take 40 each"


def test_jobs_that_take_more_now_need_more_room() -> None:
    """Jobs took few blocks; now two take 20 each, and want more than these by a turn."""
    runtime, demand = make_demand(40)
    do_turn(runtime, 0, blocks=3)
    for _ in range(20):
        demand.note_jobs()
    for job in (0, 1):
        do_turn(runtime, job, blocks=20)
    assert demand.exceeds_room()
    assert demand.find_room().latest_job == 1


def test_a_job_whose_client_is_gone_takes_no_room() -> None:
    """There is room for two, and ten seconds between the jobs."""
    clock = Clock()
    began_s = clock.now_s
    runtime, demand = make_demand(27, clock)
    for job in range(4):
        do_turn(runtime, job, blocks=10 + 2)
        clock.now_s += 10.0
    demand.note_jobs()
    for passed_s, latest in ((0.0, 2), (1.0, 3), (11.0, 4), (29.0, 4), (31.0, math.inf)):
        clock.now_s = began_s + MOST_AWAY_S + passed_s
        runtime.jobs.expire()
        assert demand.find_room().latest_job == latest
    do_turn(runtime, 0, blocks=10 + 2)
    assert demand.find_room().latest_job == 1
    runtime.jobs.check_integrity()


def test_a_job_without_a_full_block_counts_while_it_runs() -> None:
    """There is room for two."""
    runtime, demand = make_demand(20)
    runtime.jobs.begin("short", "turn")
    for job in range(3):
        do_turn(runtime, job, blocks=9 if job else 11)
    demand.note_jobs()
    assert demand.find_room().latest_job == 2
    runtime.jobs.finish("short", "turn", [BASH])
    assert demand.find_room().latest_job == 3


def test_the_mean_is_that_of_the_latest_turns() -> None:
    """As a list of all looks has it, while that is short; later the first ones count for little."""
    draw, looks = random.Random(0), []
    runtime, demand = make_demand(50)
    for _ in range(500):
        do_turn(runtime, draw.randrange(5), blocks=draw.randrange(2, 40))
        demand.note_jobs()
        blocks = runtime.jobs.turn_counts.blocks
        looks.append(len(blocks) / len(blocks.jobs))
    for job in range(5):
        do_turn(runtime, job, blocks=2)
    numbers = sorted(entry.number for entry in runtime.jobs.jobs)
    assert demand.find_room().latest_job == numbers[int(50 * len(looks) / sum(looks)) - 1]


def test_the_caches_could_be_filled_so_often_in_a_round() -> None:
    """A token takes 0.02 s to compute, whatever jobs take, and there is room for a hundred blocks."""
    runtime, demand = make_demand(100)

    def find_seconds(tokens: int, kept_tokens: int) -> float:
        return 0.02 * (tokens - kept_tokens)

    assert demand.find_refills(find_seconds) == 0.0, "there are no jobs"
    for job in range(3):
        do_turn(runtime, job, blocks=10)
    assert demand.find_refills(find_seconds) == 0.0, "no turn has told how long it takes"
    for _ in range(5):
        runtime.rounds.note_turn(15.0)
        runtime.rounds.note_tools(49.0)
    refill_s = 100 * BLOCK * 0.02
    assert demand.find_refills(find_seconds) == pytest.approx(64.0 / refill_s)
