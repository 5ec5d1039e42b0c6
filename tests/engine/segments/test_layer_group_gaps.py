"""Gaps of models with windows or chunks, without a worker: each row must read its own tokens' keys and values."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from gapped_families import FAMILIES
from gapped_scheduler import FEW_SLOTS, PRIORITIES, PROMPT, Soak, rows_of, run_until_idle
from grouped_scheduler import find_hits, make_lone
from lone_scheduler import BLOCK_SIZE, LoneScheduler
from sizes import pick_size
from vllm.v1.core.kv_cache_utils import get_group_id
from vllm.v1.request import RequestStatus

# The window takes four blocks.
ALL_ISLANDS = {"row_s": 0.0}


def make_filling(model_path: str, family: str, blocks: int = 101, **options: Any) -> LoneScheduler:
    lone = make_lone(model_path, FAMILIES[family], blocks, shadow=True, tuning=ALL_ISLANDS, **options)
    lone.scheduler.clock = itertools.count(1.0).__next__
    return lone


def drop(lone: LoneScheduler, group: int, *indices: int) -> None:
    """Forget these blocks of a group's layers, as far as they are free."""
    for block in lone.pool.blocks:
        if block.ref_cnt or not block.block_hash or get_group_id(block.block_hash) != group:
            continue
        if block.block_hash_num_tokens // BLOCK_SIZE - 1 in indices:
            lone.pool.evict_blocks({block.block_id})


def cache_prompt(lone: LoneScheduler) -> None:
    lone.add("before", PROMPT, output_tokens=1)
    run_until_idle(lone)


def test_a_gap_is_filled_from_the_last_place_to_go_on(tiny_model_path: str) -> None:
    """300 tokens, of which full attention lacks blocks 5 and 6; the only window left is that at the end."""
    lone = make_filling(tiny_model_path, "gpt-oss", policy="asymcache")
    cache_prompt(lone)
    drop(lone, 0, *range(14))
    drop(lone, 1, 5, 6)
    lone.add("job", PROMPT, output_tokens=1)
    assert rows_of(lone.step()) == {"job fill 0": (96, 0)}
    assert rows_of(lone.step()) == {"job fill 0": (16, 96), "job": (12, 288)}
    run_until_idle(lone)
    assert lone.scheduler.gap_filler.stats.fill_tokens == 7 * BLOCK_SIZE


def test_an_island_ends_where_its_last_window_does(tiny_model_path: str) -> None:
    """Windows are there at block 9 and at the end: two gaps; what lies behind block 9 is computed with the second."""
    lone = make_filling(tiny_model_path, "gpt-oss", policy="asymcache")
    cache_prompt(lone)
    drop(lone, 0, *range(5), *range(9, 14))
    drop(lone, 1, 1, 12)
    lone.add("job", PROMPT, output_tokens=1)
    assert rows_of(lone.step()) == {"job fill 0": (32, 0), "job fill 1": (64, 144)}
    assert rows_of(lone.step()) == {"job": (12, 288)}
    run_until_idle(lone)
    assert lone.scheduler.gap_filler.stats.requests == {3: 1}


def test_without_a_window_there_is_no_island(tiny_model_path: str) -> None:
    lone = make_filling(tiny_model_path, "gpt-oss", policy="asymcache")
    cache_prompt(lone)
    drop(lone, 0, *range(18))
    drop(lone, 1, 5)
    lone.add("job", PROMPT, output_tokens=1)
    steps = run_until_idle(lone)
    assert next(rows_of(step) for step in steps if step.scheduled) == {"job": (96, 0)}
    assert lone.scheduler.gap_filler.stats.fill_tokens == 0


def test_what_a_fill_request_leaves_goes_first(tiny_model_path: str) -> None:
    """Its windows, and its copies of blocks that were cached between a gap and the place it began at."""
    lone = make_filling(tiny_model_path, "gpt-oss", policy="agentcache")
    cache_prompt(lone)
    drop(lone, 0, *range(14))
    drop(lone, 1, 5, 6)
    lone.add("job", PROMPT, output_tokens=1)
    run_until_idle(lone)
    assert lone.scheduler.gap_filler.stats.fill_tokens == 7 * BLOCK_SIZE
    needed = {block.block_id for block in find_hits(lone, [*PROMPT, 1])}
    assert len(needed) == 18 + 4
    free = lone.pool.free_block_queue.get_all_free_blocks()
    assert {block.block_id for block in free[-len(needed) :]} == needed


class WindowedSoak(Soak):
    """Full attention loses blocks; now and then a window does, behind which nothing is of use any more."""

    def lose_blocks(self, index: int) -> None:
        full = self.lone.scheduler.gap_filler.finder.rule.full
        group = self.rng.choice(full) if self.rng.random() < 0.95 else self.rng.randrange(3)
        drop(self.lone, group, index)


@pytest.mark.parametrize(
    ("family", "seed", "blocks", "options"),
    [
        ("gpt-oss", 0, 110, {"policy": "asymcache"}),
        ("gpt-oss", 7, 110, {"policy": "agentcache", "in_flight": 2}),
        ("gpt-oss", 18, 100, {"policy": "asymcache", "in_flight": 2, "engine": PRIORITIES}),
        ("gemma", 2, 200, {"policy": "agentcache", "in_flight": 2}),
        ("two windows", 3, 250, {"policy": "asymcache", "engine": FEW_SLOTS}),
        ("llama-4", 4, 170, {"policy": "asymcache", "in_flight": 2}),
        ("deepseek", 6, 70, {"policy": "agentcache", "in_flight": 2}),
        ("llama-4", 5, 150, {"policy": "agentcache", "engine": PRIORITIES}),
    ],
)
def test_soak_of_families_reads_only_own_values(
    tiny_model_path: str, family: str, seed: int, blocks: int, options: dict[str, Any]
) -> None:
    lone = make_filling(tiny_model_path, family, blocks, **options)
    soak = WindowedSoak(lone, seed)
    soak.run(pick_size(500, 2000))
    assert sum(lone.scheduler.gap_filler.stats.requests.values()) > 5
    lone.scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
    run_until_idle(lone)
    assert lone.pool.get_num_free_blocks() == blocks - 1
