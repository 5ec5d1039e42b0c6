"""Gaps on vLLM's scheduler without a worker: every row must read its own tokens' keys and values, whatever happens."""

from __future__ import annotations

from typing import Any

import pytest
from gapped_scheduler import (
    FEW_SLOTS,
    PRIORITIES,
    PROMPT,
    Soak,
    cache_prompt,
    drop_blocks,
    make_lone,
    rows_of,
    run_until_idle,
)
from lone_scheduler import BLOCK_SIZE, make_config, make_scheduler
from sizes import pick_size
from vllm.v1.request import RequestStatus

from agentcache.engine.constants import SCHEDULER_CLASS


def test_gaps_are_filled_in_the_request_s_own_step(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path)
    cache_prompt(lone, 2, 3, 9)
    lone.add("job", PROMPT, output_tokens=3)
    first = lone.step()
    # 300 tokens: prefix of 2 blocks, gap of 2, island of 5, gap of 1, island of 8, tail of 12 tokens.
    assert rows_of(first) == {"job fill 0": (32, 32), "job fill 1": (16, 144), "job": (12, 288)}
    assert first.hit_tokens == {"job": 288 - 48}
    run_until_idle(lone)
    stats = lone.scheduler.gap_filler.stats
    assert stats.requests == {3: 1}
    assert stats.fill_tokens == 48
    assert not lone.scheduler.gap_filler.rows


def test_policies_without_segments_hit_the_prefix_alone(tiny_model_path: str) -> None:
    for lone in (make_lone(tiny_model_path, policy="lru"), make_lone(tiny_model_path, enabled=False)):
        cache_prompt(lone, 2)
        lone.add("job", PROMPT, output_tokens=1)
        assert lone.step().hit_tokens == {}
        assert sum(sum(step.hit_tokens.values()) for step in run_until_idle(lone)) == 32
        assert lone.scheduler.gap_filler is None


def test_gap_beyond_the_budget_is_filled_over_several_steps(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path)
    cache_prompt(lone, *range(1, 12))
    lone.add("job", PROMPT, output_tokens=1)
    assert rows_of(lone.step()) == {"job fill 0": (96, 16)}
    # The last chunk leaves room for the request itself.
    assert rows_of(lone.step()) == {"job fill 0": (80, 112), "job": (12, 288)}
    assert [step.hit_tokens for step in run_until_idle(lone)] == []


def test_blocks_behind_the_gap_are_held_until_admission(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, blocks=44)
    cache_prompt(lone, *range(1, 12))
    lone.add("job", PROMPT, output_tokens=1)
    lone.step()
    held = lone.scheduler.gap_filler.holds.count_held()
    assert len(held) == 6 + 6, "the island's six blocks, and six that the first chunk has filled"
    # Whoever else comes takes other blocks.
    lone.add("other", [5000 + token for token in range(16 * 20)], output_tokens=1)
    run_until_idle(lone)
    assert not lone.scheduler.gap_filler.holds.count_held()
    assert lone.scheduler.gap_filler.stats.fill_tokens == 11 * BLOCK_SIZE


def test_held_blocks_give_way_before_running_work_is_preempted(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, blocks=30)
    cache_prompt(lone, *range(1, 12))
    # It grows by eight blocks while the gap is filled, and there are not so many beside the held ones.
    lone.add("grows", [5000 + token for token in range(90)], output_tokens=130)
    lone.step()
    lone.add("job", PROMPT, output_tokens=1)
    steps = run_until_idle(lone)
    assert not any("grows" in step.preempted for step in steps)
    assert lone.pool.get_num_free_blocks() == 29


def test_abort_of_the_request_ends_its_fill_rows(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, in_flight=2)
    cache_prompt(lone, *range(1, 12))
    lone.add("job", PROMPT, output_tokens=1)
    lone.step()
    assert lone.scheduler.gap_filler.rows
    lone.abort("job")
    assert not lone.scheduler.gap_filler.rows
    assert not lone.scheduler.gap_filler.holds.count_held()
    assert not lone.scheduler.requests
    run_until_idle(lone)
    assert lone.pool.get_num_free_blocks() == 63


@pytest.mark.parametrize("reset_running", [False, True])
def test_reset_of_the_cache_between_chunks_of_a_gap(tiny_model_path: str, reset_running: bool) -> None:
    lone = make_lone(tiny_model_path)
    cache_prompt(lone, *range(1, 12))
    lone.add("job", PROMPT, output_tokens=2)
    lone.step()
    # As in stock vLLM, running requests keep their blocks unless they are to be preempted.
    assert lone.scheduler.reset_prefix_cache(reset_running_requests=reset_running) is reset_running
    lone.scheduler.check_integrity()
    steps = run_until_idle(lone)
    assert [len(step.finished["job"]) for step in steps if "job" in step.finished] == [302]
    assert lone.scheduler.reset_prefix_cache()
    cache_prompt(lone, 4)
    lone.add("again", PROMPT, output_tokens=1)
    assert list(rows_of(lone.step()).values()) == [(16, 64), (12, 288)]


def test_two_requests_with_the_same_gap_fill_it_once(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path)
    cache_prompt(lone, 4)
    lone.add("one", PROMPT, output_tokens=1)
    lone.add("two", PROMPT, output_tokens=1)
    first = lone.step()
    assert rows_of(first) == {"one fill 0": (16, 64), "one": (12, 288), "two": (12, 288)}
    assert first.hit_tokens == {"one": 288 - 16, "two": 288}


def test_salt_and_priority_go_along_with_a_fill_row(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path)
    lone.add("before", PROMPT, output_tokens=1, cache_salt="tenant")
    run_until_idle(lone)
    drop_blocks(lone, 4)
    lone.add("stranger", PROMPT, output_tokens=1, cache_salt="another")
    lone.add("tenant", PROMPT, output_tokens=1, cache_salt="tenant", priority=3)
    seen: dict[str, Any] = {}
    hits: dict[str, int] = {}
    while not lone.idle:
        step = lone.step()
        seen |= {name: lone.scheduler.requests.get(name) for name in step.scheduled if "#fill" in name}
        hits |= step.hit_tokens
    assert hits == {"stranger": 0, "tenant": 288 - 16}
    assert [name.split("#")[0] for name in seen] == ["tenant"]


def test_islands_that_save_less_than_a_row_are_recomputed(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, row_s=1.0)
    cache_prompt(lone, 2)
    lone.add("job", PROMPT, output_tokens=1)
    assert rows_of(lone.step()) == {"job": (96, 32)}
    run_until_idle(lone)
    assert lone.scheduler.gap_filler.stats.islands_dropped == 1


def test_request_without_the_right_to_read_the_cache_has_no_gaps(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path)
    cache_prompt(lone, 2)
    lone.add("job", PROMPT, output_tokens=1)
    lone.scheduler.requests["job"].skip_reading_prefix_cache = True
    assert rows_of(lone.step()) == {"job": (96, 0)}
    assert lone.scheduler.gap_filler.stats.fallbacks == {"cache not read": 1}


@pytest.mark.parametrize(
    ("seed", "in_flight", "blocks", "engine"),
    [
        (0, 1, 70, {}),
        (1, 2, 70, {}),
        (2, 2, 110, {}),
        (3, 1, 50, {}),
        # Under priorities stock vLLM preempts what it has scheduled in the same step, and then hits what nobody wrote.
        (18, 1, 60, PRIORITIES),
        (23, 2, 60, PRIORITIES),
        (4, 2, 60, FEW_SLOTS),
    ],
)
def test_soak_reads_only_its_own_keys_and_values(
    tiny_model_path: str, seed: int, in_flight: int, blocks: int, engine: dict[str, Any]
) -> None:
    lone = make_lone(tiny_model_path, blocks, in_flight, engine)
    soak = Soak(lone, seed)
    soak.run(pick_size(1000, 2000))
    stats = lone.scheduler.gap_filler.stats
    assert sum(stats.requests.values()) > 15
    assert max(stats.requests) > 2
    assert blocks > 100 or soak.preempted
    lone.scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
    run_until_idle(lone)
    assert lone.pool.get_num_free_blocks() == blocks - 1


def test_shadow_cache_notices_a_block_that_was_not_filled(tiny_model_path: str) -> None:
    """The oracle can fail: a request that is admitted although its gap was never computed is found out."""
    lone = make_lone(tiny_model_path)
    cache_prompt(lone)
    pool = lone.pool
    third = next(block for block in pool.blocks if block.block_hash_num_tokens == 3 * BLOCK_SIZE)
    lone.shadow.slots[third.block_id * BLOCK_SIZE] = 0
    lone.add("job", PROMPT, output_tokens=1)
    with pytest.raises(AssertionError, match="other keys and values than its own at 32"):
        run_until_idle(lone)


@pytest.mark.parametrize(("method", "fills"), [("ngram", True), ("suffix", False), ("eagle", False)])
def test_only_drafts_by_ngram_leave_gaps_on(
    tiny_model_path: str, vllm_log: pytest.LogCaptureFixture, method: str, fills: bool
) -> None:
    """A drafter with a cache of its own would have it filled with a wrong token at the end of each gap."""
    drafts = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}
    config = make_config(tiny_model_path, SCHEDULER_CLASS, {"speculative_config": drafts}, policy="asymcache")
    config.speculative_config.method = method
    scheduler = make_scheduler(config, 64)
    assert (scheduler.gap_filler is not None) is fills
    line = "Cached blocks are reused as prefixes only: speculative decoding is on, and not by ngram."
    assert (line in vllm_log.messages) is not fills
