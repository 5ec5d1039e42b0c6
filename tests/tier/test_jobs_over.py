"""A job is over: what it alone has used goes first from both caches, and what others use is worth what it was."""

from __future__ import annotations

import random

import pytest
from lone_scheduler import BLOCK_SIZE
from sizes import pick_size
from tiered_jobs import PROMPT, ask, make_tokens, push_out, run_at_random
from tiered_scheduler import TieredScheduler, make_tiered
from vllm import SamplingParams
from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId, make_block_hash_with_group_id
from vllm.v1.request import Request

SYSTEM = make_tokens(77, 4 * BLOCK_SIZE)


def keys_of(lone: TieredScheduler, tokens: list[int]) -> list[BlockHashWithGroupId]:
    hashes = Request("", tokens, SamplingParams(), None, block_hasher=lone._hasher).block_hashes
    return [make_block_hash_with_group_id(each, 0) for each in hashes]


def host_order(lone: TieredScheduler) -> list[BlockHashWithGroupId]:
    """What the host's memory holds, in the order of its eviction."""
    blocks = lone.scheduler.tier.host._queue.get_all_free_blocks()
    return [block.block_hash for block in blocks if block.block_hash is not None]


def gpu_order(lone: TieredScheduler) -> list[BlockHashWithGroupId]:
    return [block.block_hash for block in lone.scheduler.block_queue.get_all_free_blocks() if block.block_hash]


def make_stored(model_path: str, *, last: bool) -> TieredScheduler:
    """Six blocks or so of job "mine" are in the host's memory, among those of jobs that come back."""
    lone = make_tiered(model_path, host_blocks=60)
    for turn in range(6):
        for job in range(3):
            ask(lone, f"known-{job}/{turn}", make_tokens(50 + job, 100 + 20 * turn), last=turn == 5)
            lone.run_until_idle()
    ask(lone, "mine/0", PROMPT, last=last)
    lone.run_until_idle()
    ask(lone, "other/0", make_tokens(9, 140))
    push_out(lone, 1, 2)
    return lone


@pytest.mark.parametrize("last", [False, True])
def test_blocks_of_a_job_that_is_over_go_first(last: bool, tiny_model_path: str) -> None:
    lone = make_stored(tiny_model_path, last=last)
    mine = set(keys_of(lone, PROMPT)) & set(host_order(lone))
    assert mine
    assert set(host_order(lone)[: len(mine)]) != mine
    assert lone.scheduler.tracker.release("mine") == ["mine"]
    assert set(host_order(lone)[: len(mine)]) == mine
    lone.scheduler.check_integrity()


def test_who_comes_late_hits_what_an_ended_job_has_left(tiny_model_path: str) -> None:
    lone = make_stored(tiny_model_path, last=True)
    lone.scheduler.tracker.release("mine")
    fetched = lone.scheduler.tier.fetched_blocks
    mine = set(keys_of(lone, PROMPT)) & set(host_order(lone))
    ask(lone, "late/0", PROMPT)
    lone.run_until_idle()
    assert lone.scheduler.tier.fetched_blocks > fetched
    # It may come back for them.
    push_out(lone, 5)
    held = mine & set(host_order(lone))
    assert held
    assert set(host_order(lone)[: len(held)]) != held


def test_shared_blocks_keep_their_place_until_all_are_over(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path, host_blocks=120)
    prompts = {name: SYSTEM + make_tokens(seed, 5 * BLOCK_SIZE) for seed, name in enumerate(("one", "two"), 30)}
    for name, prompt in prompts.items():
        ask(lone, f"{name}/0", prompt)
        lone.run_until_idle()
    push_out(lone, 1, 2)
    shared, order = set(keys_of(lone, SYSTEM)), host_order(lone)
    # "two" has used them last.
    before = [key for key in order if key in shared]
    assert len(before) == len(shared)
    own = set(keys_of(lone, prompts["two"])) - shared
    lone.scheduler.tracker.release("two")
    assert set(host_order(lone)[: len(own)]) == own
    assert [key for key in host_order(lone) if key not in own] == [key for key in order if key not in own]
    lone.scheduler.tracker.release("one")
    both = set(keys_of(lone, prompts["one"])) | own | shared
    assert set(host_order(lone)[: len(both)]) == both
    lone.scheduler.check_integrity()


def test_what_a_waiting_request_wants_is_not_given_up(tiny_model_path: str) -> None:
    lone = make_stored(tiny_model_path, last=True)
    ask(lone, "next/0", PROMPT)
    order = host_order(lone)
    lone.scheduler.tracker.release("mine")
    assert host_order(lone) == order
    lone.run_until_idle()


def test_what_the_gpu_has_of_an_ended_job_is_not_copied(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path)
    tier = lone.scheduler.tier
    ask(lone, "kept/0", make_tokens(1, 100))
    ask(lone, "mine/0", PROMPT)
    lone.run_until_idle()
    assert tier.reset()
    mine = set(keys_of(lone, PROMPT))
    assert set(gpu_order(lone)[: len(mine)]) != mine
    lone.scheduler.tracker.release("mine")
    assert set(gpu_order(lone)[: len(mine)]) == mine
    avoided = tier.storing.stats.avoided
    push_out(lone, 2, 3)
    assert not mine & set(host_order(lone))
    assert tier.storing.stats.avoided - avoided == len(mine), "no copy of them was begun"
    assert set(keys_of(lone, make_tokens(1, 100))) <= set(host_order(lone))


def test_a_copy_lost_in_the_host_makes_no_ended_job_dear(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path)
    ask(lone, "mine/0", PROMPT, last=True)
    # Not pinned.
    ask(lone, "kept/0", make_tokens(1, 100), last=True)
    lone.run_until_idle()
    storing, mine = lone.scheduler.tier.storing, keys_of(lone, PROMPT)
    lone.scheduler.tracker.release("mine")
    kept = [lone.pool.blocks[number] for number in lone.find_blocks(make_tokens(1, 100))]
    lone.scheduler.block_queue.reprice(kept, storing._fetch_s)
    storing._note_lost_copies(lone.scheduler.tier.host.map.find_blocks(mine))
    assert set(gpu_order(lone)[: len(mine)]) == set(mine)


def test_stored_victims_of_an_ended_job_stay_the_first(tiny_model_path: str) -> None:
    """The next victims that are stored cost what a fetch does, but for those that nobody would fetch."""
    lone = make_tiered(tiny_model_path)
    ask(lone, "mine/0", PROMPT, last=True)
    ask(lone, "kept/0", make_tokens(1, 100), last=True)
    lone.run_until_idle()
    storing, mine = lone.scheduler.tier.storing, keys_of(lone, PROMPT)
    storing._margin = lone.pool.num_gpu_blocks
    lone.scheduler.tracker.release("mine")
    storing._choose(None)
    kept = [lone.pool.blocks[number] for number in lone.find_blocks(make_tokens(1, 100))]
    lone.scheduler.block_queue.reprice(kept, storing._fetch_s / 100)
    assert set(gpu_order(lone)[: len(mine)]) == set(mine)


def test_a_lost_copy_counts_by_the_last_turn_of_its_job(tiny_model_path: str) -> None:
    """It was copied while it ran, before anybody knew how the turn would end."""
    lone = make_tiered(tiny_model_path)
    ask(lone, "mine/0", PROMPT, tokens=20)
    lone.run_until_idle()
    host = lone.scheduler.tier.host
    copies = host.map.find_blocks([key for key in keys_of(lone, PROMPT) if host.map.holds(key)])
    assert copies
    gpu_use = lone.scheduler.tier.storing.last_use_of(lone.pool.blocks[lone.find_blocks(PROMPT)[0]])
    lone.scheduler.tracker.release("mine")
    assert all(host.last_use_of(copy) == gpu_use for copy in copies)


def test_what_the_gpu_loses_of_an_ended_job_still_goes_first(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path)
    ask(lone, "mine/0", PROMPT)
    ask(lone, "kept/0", make_tokens(1, 100))
    lone.run_until_idle()
    mine = set(keys_of(lone, PROMPT)) & set(host_order(lone))
    lone.scheduler.tracker.release("mine")
    push_out(lone, 2, 3)
    assert not lone.find_blocks(PROMPT)
    assert mine
    assert set(host_order(lone)[: len(mine)]) == mine


def test_blocks_of_the_reply_are_its_jobs_too(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path)
    ask(lone, "mine/0", PROMPT, tokens=40, last=True)
    lone.run_until_idle()
    blocks = len(gpu_order(lone))
    assert blocks > len(PROMPT) // BLOCK_SIZE + 1
    lone.scheduler.tracker.release("mine")
    assert len(lone.scheduler.tier.storing._unwanted) == blocks


def test_gpu_blocks_with_other_content_are_wanted(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path)
    ask(lone, "mine/0", PROMPT, last=True)
    lone.run_until_idle()
    lone.scheduler.tracker.release("mine")
    assert lone.scheduler.tier.storing._unwanted
    lone.pool.free_blocks(lone.pool.get_new_blocks(lone.pool.get_num_free_blocks()))
    assert not lone.scheduler.tier.storing._unwanted


def make_left(model_path: str) -> TieredScheduler:
    """The GPU alone has what job "mine" has left, which is over."""
    lone = make_tiered(model_path)
    ask(lone, "mine/0", PROMPT, last=True)
    lone.run_until_idle()
    assert lone.scheduler.tier.reset()
    lone.scheduler.tracker.release("mine")
    return lone


def test_what_a_late_job_has_used_is_wanted_again(tiny_model_path: str) -> None:
    lone = make_left(tiny_model_path)
    storing = lone.scheduler.tier.storing
    assert set(lone.find_blocks(PROMPT)) <= storing._unwanted
    ask(lone, "late/0", PROMPT, tokens=1)
    lone.run_until_idle()
    assert not storing._unwanted & set(lone.find_blocks(PROMPT))


def test_what_a_late_job_uses_is_copied_while_it_runs(tiny_model_path: str) -> None:
    lone = make_left(tiny_model_path)
    ask(lone, "late/0", PROMPT, tokens=20)
    for _ in range(6):
        lone.step()
    assert lone.scheduler.running
    assert set(keys_of(lone, PROMPT)) <= set(host_order(lone))


def test_a_copy_under_way_for_an_ended_job_is_dropped(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path)
    lone.pace = 0.0
    ask(lone, "mine/0", PROMPT, last=True)
    while lone.scheduler.requests:
        lone.step()
    assert lone.copies
    lone.scheduler.tracker.release("mine")
    lone.pace = 1.0
    lone.run_until_idle()
    assert host_order(lone) == []
    assert lone.scheduler.tier.storing.stats.stored == 0


def release_at_random(lone: TieredScheduler) -> None:
    """Any job may be over, or be told to be, after any step."""
    chance, step, tracker = random.Random(lone.chance.random()), lone.step, lone.scheduler.tracker

    def step_and_release() -> object:
        outcome = step()
        if chance.random() < 0.2:
            tracker.release(f"job-{chance.randrange(8)}")
            lone.scheduler.check_integrity()
        return outcome

    lone.step = step_and_release  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("seed", range(pick_size(6, 60)))
def test_rows_read_their_own_kv_whatever_job_is_over(seed: int, tiny_model_path: str) -> None:
    lone = run_at_random(tiny_model_path, seed, release_at_random)
    assert lone.pool.get_num_free_blocks() == lone.pool.num_gpu_blocks - 1
