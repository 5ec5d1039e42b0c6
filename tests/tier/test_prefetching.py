"""What a job has left comes back to the GPU before the job does, at nobody's cost."""

from __future__ import annotations

from collections import Counter

import pytest
from lone_scheduler import BLOCK_SIZE
from sizes import pick_size
from tiered_jobs import PROMPT, ask, make_evicted, make_tokens, run_at_random
from tiered_scheduler import TieredScheduler

from agentcache.engine.tier import prefetching
from agentcache.engine.tier.prefetching import Prefetching, PrefetchStats

BLOCKS = len(PROMPT) // BLOCK_SIZE


def prefetching_of(lone: TieredScheduler) -> Prefetching:
    assert lone.scheduler.tier.prefetching is not None
    return lone.scheduler.tier.prefetching


def make_awaited(model_path: str) -> TieredScheduler:
    """Job "mine" is away, its turn in the host's memory alone; what the GPU has is of jobs that gave their answers.

    One request runs. Nothing need stay free, in a cache as small as this.
    """
    lone = make_evicted(model_path)
    for seed in (5, 6, 7):
        ask(lone, f"over-{seed}/0", make_tokens(seed, 300), last=True)
        lone.run_until_idle()
    for job in ("other-1", "other-2", "other-3", "other-4", "over-5", "over-6", "over-7"):
        assert lone.scheduler.tracker.release(job)
    assert lone.find_blocks(PROMPT) == []
    prefetching_of(lone)._spare_blocks = 0
    ask(lone, "runs/0", make_tokens(8, 20), tokens=60)
    return lone


def run_steps(lone: TieredScheduler, steps: int) -> None:
    for _ in range(steps):
        lone.step()


def come_back(lone: TieredScheduler) -> None:
    ask(lone, "mine/1", PROMPT + make_tokens(9, 30))


def run_until_admitted(lone: TieredScheduler) -> int:
    """Return the tokens that the job's next turn hits."""
    hits: dict[str, int] = {}
    while "mine/1" not in hits:
        hits.update(lone.step().hit_tokens)
    return hits["mine/1"]


@pytest.fixture(autouse=True)
def expected_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is away is about to be back: no tool has been seen, and the clock goes on by a second a step."""
    monkeypatch.setattr(prefetching, "_LEAST_CHANCE", 0.0)
    monkeypatch.setattr(prefetching, "_WITHIN_S", 30.0)


def test_what_is_likely_wanted_is_there_before(tiny_model_path: str) -> None:
    lone = make_awaited(tiny_model_path)
    run_steps(lone, 6)
    assert len(lone.find_blocks(PROMPT)) == BLOCKS
    fetched = lone.scheduler.tier.fetched_blocks
    come_back(lone)
    assert run_until_admitted(lone) == BLOCKS * BLOCK_SIZE
    assert lone.scheduler.tier.fetched_blocks == fetched
    assert prefetching_of(lone).stats == PrefetchStats(used=BLOCKS)
    lone.run_until_idle()


def test_job_that_is_back_too_soon_waits_for_its_blocks(tiny_model_path: str) -> None:
    lone = make_awaited(tiny_model_path)
    lone.pace = 0.0
    run_steps(lone, 3)
    come_back(lone)
    run_steps(lone, 2)
    assert prefetching_of(lone).stats == PrefetchStats(late=BLOCKS)
    lone.pace = 1.0
    fetched = lone.scheduler.tier.fetched_blocks
    assert run_until_admitted(lone) == BLOCKS * BLOCK_SIZE
    assert lone.scheduler.tier.fetched_blocks == fetched + BLOCKS, "once"
    lone.run_until_idle()


def test_prefetch_for_a_job_that_is_over_is_wasted(tiny_model_path: str) -> None:
    lone = make_awaited(tiny_model_path)
    run_steps(lone, 6)
    assert prefetching_of(lone).stats == PrefetchStats()
    lone.scheduler.tracker.release("mine")
    assert prefetching_of(lone).stats == PrefetchStats(wasted=BLOCKS)
    lone.run_until_idle()


def test_what_came_is_evicted_last_until_its_job_should_be_back(tiny_model_path: str) -> None:
    lone = make_awaited(tiny_model_path)
    run_steps(lone, 6)
    free = lone.scheduler.block_queue.get_all_free_blocks()
    assert {block.block_id for block in free[-BLOCKS:]} == set(lone.find_blocks(PROMPT))
    lone.scheduler.clock.now_s += 31.0
    lone.step()
    assert not lone.scheduler.tracker.pins._guards
    lone.run_until_idle()


@pytest.mark.parametrize(
    "obstacle", ["a request waits", "no spare blocks", "likelier ones would go", "the engine rests"]
)
def test_nothing_is_prefetched_at_anybodys_cost(obstacle: str, tiny_model_path: str) -> None:
    lone = make_awaited(tiny_model_path)
    watched = prefetching_of(lone)
    if obstacle == "a request waits":
        watched._count_waiting = lambda: 1
    elif obstacle == "no spare blocks":
        watched._spare_blocks = lone.pool.num_gpu_blocks - BLOCKS
    elif obstacle == "likelier ones would go":
        watched._away.chance = lambda *_: 1.0
    else:
        lone.abort("runs/0")
    fetched = lone.scheduler.tier.fetched_blocks
    run_steps(lone, 6)
    assert lone.scheduler.tier.fetched_blocks == fetched
    assert lone.find_blocks(PROMPT) == []
    lone.run_until_idle()


def test_a_switch_turns_prefetches_off(tiny_model_path: str) -> None:
    lone = make_evicted(tiny_model_path, prefetch=False)
    assert lone.scheduler.tier.prefetching is None


def test_rows_read_their_own_keys_and_values(tiny_model_path: str) -> None:
    """The random jobs of tests/tier/test_tier.py, with prefetches whenever there are blocks to put them."""
    ends: Counter[str] = Counter()
    for seed in range(10, 10 + pick_size(8, 60)):
        lone = run_at_random(tiny_model_path, seed, expect_all)
        stats = prefetching_of(lone).stats
        ends += Counter(used=stats.used, late=stats.late, wasted=stats.wasted)
        assert lone.pool.get_num_free_blocks() == lone.pool.num_gpu_blocks - 1
    assert {"used", "late", "wasted"} <= ends.keys()


def expect_all(lone: TieredScheduler) -> None:
    watched = prefetching_of(lone)
    watched._spare_blocks = 0
    watched._away.chance = lambda *_: 0.0
