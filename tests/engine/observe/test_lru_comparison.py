"""What the shadow LRU hits is what stock vLLM hits, and what that is worth."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from lone_scheduler import BLOCK_SIZE, LoneScheduler, make_config, make_scheduler
from sizes import pick_size

from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.observe.lru_comparison import find_saving
from agentcache.engine.rpc.snapshot import make_snapshot
from agentcache.policy.price import RecomputeCost
from agentcache.policy.reuse_plan import SegmentCosts

BLOCKS = 41
NUMBERS = itertools.count()
COSTS = SegmentCosts(RecomputeCost(slope_s=0.5, base_s=1.0, floor_s=1e-9), row_s=0.25, block_size=BLOCK_SIZE)


def make_lone(model_path: str, policy: str, engine: dict[str, Any] | None = None, **options: Any) -> LoneScheduler:
    config = make_config(model_path, SCHEDULER_CLASS, engine, policy=policy, **options)
    return LoneScheduler(make_scheduler(config, BLOCKS))


def run(lone: LoneScheduler, *prompts: list[int], output_tokens: int = 1) -> int:
    """Run requests beside each other; return the tokens that they hit."""
    for prompt in prompts:
        lone.add(f"request {next(NUMBERS)}", prompt, output_tokens)
    hits = 0
    while not lone.idle:
        hits += sum(lone.step().hit_tokens.values())
        if lone.scheduler.block_queue is not None:
            lone.scheduler.check_integrity()
    return hits


def make_turns(rng: random.Random, jobs: int, turns: int) -> list[tuple[list[int], int]]:
    """Prompts, each with the tokens of its reply, of jobs that share a beginning; they go on in any order."""
    system = [rng.randrange(8000) for _ in range(70)]
    prompts = [list(system) for _ in range(jobs)]
    asked = []
    for job in rng.choices(range(jobs), k=jobs * turns):
        prompt = prompts[job] + [rng.randrange(8000) for _ in range(rng.randint(5, 60))]
        if len(prompt) > 350:
            prompt = system + prompt[-60:]
        # Of a prompt that is whole blocks the last is computed again, and vLLM then keeps it twice.
        prompt += [1] * (len(prompt) % BLOCK_SIZE == 0)
        prompts[job] = prompt
        asked.append((prompt, rng.randint(1, 40)))
    return asked


@pytest.mark.parametrize("policy", ["lru", "asymcache"])
@pytest.mark.parametrize("seed", range(pick_size(2, 20)))
def test_it_hits_what_stock_vllm_hits(tiny_model_path: str, policy: str, seed: int) -> None:
    stock, ours = make_lone(tiny_model_path, "vllm"), make_lone(tiny_model_path, policy)
    for prompt, output_tokens in make_turns(random.Random(seed), jobs=6, turns=10):
        hits = run(stock, prompt, output_tokens=output_tokens)
        before = ours.scheduler.comparison.stats.lru_tokens
        run(ours, prompt, output_tokens=output_tokens)
        assert ours.scheduler.comparison.stats.lru_tokens - before == hits
    stats = ours.scheduler.comparison.stats
    assert 0 < stats.lru_tokens < stats.prompt_tokens
    assert ours.scheduler.block_queue.evictions["capacity"].blocks > 100
    if policy == "lru":
        assert (stats.reused_tokens, stats.saved_s, stats.lost_s) == (stats.lru_tokens, 0, 0)
    else:
        assert stats.reused_tokens != stats.lru_tokens


@pytest.mark.parametrize("seed", range(pick_size(2, 20)))
def test_beside_each_other_it_hits_about_as_much(tiny_model_path: str, seed: int) -> None:
    """Blocks that are computed chunk by chunk, replies that grow, preemptions: each makes it hit a little more."""
    lone = make_lone(tiny_model_path, "lru")
    turns = make_turns(random.Random(seed), jobs=6, turns=20)
    for one, other in zip(turns[::2], turns[1::2], strict=True):
        run(lone, one[0], other[0], output_tokens=one[1])
    stats = lone.scheduler.comparison.stats
    assert 0.98 * stats.lru_tokens <= stats.reused_tokens <= stats.lru_tokens


def test_a_segment_behind_a_gap_counts_without_the_gap(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, "asymcache", tuning={"row_s": 1e-6})
    prompt = list(range(20 * BLOCK_SIZE + 3))
    run(lone, prompt)
    lost = [block for block in lone.pool.blocks if block.block_hash and block.block_hash_num_tokens == 3 * BLOCK_SIZE]
    lone.pool.evict_blocks({block.block_id for block in lost})
    run(lone, prompt)
    stats = lone.scheduler.comparison.stats
    assert stats.prompt_tokens == 2 * len(prompt)
    assert (stats.reused_tokens, stats.lru_tokens) == (19 * BLOCK_SIZE, 20 * BLOCK_SIZE)
    costs = lone.scheduler.gap_filler.costs
    assert (stats.saved_s, stats.lost_s) == (0, pytest.approx(costs.block_s(2) + 1e-6))


def test_a_preempted_request_counts_once(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, "lru")
    prompts = [[job] * 200 for job in range(3)]
    for job, prompt in enumerate(prompts):
        lone.add(f"job {job}", prompt, output_tokens=60)
    preempted = []
    while not lone.idle:
        preempted += lone.step().preempted
        lone.scheduler.check_integrity()
    assert preempted
    assert lone.scheduler.comparison.stats.prompt_tokens == 600


def test_aborts_and_resets_leave_nothing_behind(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, "lru")
    prompt = list(range(200))
    for name in ("runs", "waits"):
        lone.add(name, prompt, output_tokens=9)
    lone.step()
    lone.abort("runs")
    lone.abort("waits")
    while not lone.idle:
        lone.step()
    # A step computes six blocks.
    run(lone, prompt)
    assert lone.scheduler.comparison.stats.lru_tokens == 6 * BLOCK_SIZE
    assert lone.scheduler.reset_prefix_cache()
    run(lone, prompt)
    assert lone.scheduler.comparison.stats.lru_tokens == 6 * BLOCK_SIZE
    lone.scheduler.check_integrity()


def test_a_request_that_may_hit_nothing_hits_nothing_in_either(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, "lru")
    prompt = list(range(100))
    run(lone, prompt)
    lone.add("again", prompt, output_tokens=1)
    lone.scheduler.requests["again"].skip_reading_prefix_cache = True
    while not lone.idle:
        lone.step()
    stats = lone.scheduler.comparison.stats
    assert (stats.prompt_tokens, stats.reused_tokens, stats.lru_tokens) == (200, 0, 0)


def test_it_is_there_only_where_hashes_tell_what_lru_hits(tiny_model_path: str) -> None:
    assert make_lone(tiny_model_path, "vllm").scheduler.comparison is None
    assert make_snapshot(make_lone(tiny_model_path, "vllm").scheduler).comparison is None
    uncached = make_lone(tiny_model_path, "asymcache", {"enable_prefix_caching": False})
    assert uncached.scheduler.comparison is None
    assert make_snapshot(make_lone(tiny_model_path, "asymcache").scheduler).comparison.lru_tokens == 0


@pytest.mark.parametrize(
    ("reused", "filled", "lru", "computed_less", "computed_more"),
    [
        (3, (), 3, (), ()),
        (5, (), 3, (3, 4), ()),
        (1, (), 4, (), (1, 2, 3)),
        # Blocks 2, 3 and 5 were filled for those behind them.
        (4, {2, 3, 5}, 2, (4, 6), ()),
        (4, {2, 3, 5}, 7, (), (2, 3, 5)),
        (4, {2, 3, 5}, 9, (), (2, 3, 5, 7, 8)),
    ],
)
def test_a_saving_is_what_the_blocks_cost_that_only_lru_computes(
    reused: int, filled: set[int], lru: int, computed_less: tuple[int, ...], computed_more: tuple[int, ...]
) -> None:
    expected = sum(map(COSTS.block_s, computed_less)) - sum(map(COSTS.block_s, computed_more))
    fill_requests = 2 if filled else 0
    assert find_saving(COSTS, reused, filled, lru) == pytest.approx(expected - fill_requests * COSTS.row_s)
