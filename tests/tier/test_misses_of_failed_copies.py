"""Whoever waits for a copy that fails computes what it was to bring; nothing is read of it, and nothing leaks."""

from __future__ import annotations

import pytest
from lone_scheduler import BLOCK_SIZE
from sizes import pick_size
from tiered_jobs import PROMPT, ask, make_evicted, make_tokens, push_out, run_at_random
from tiered_scheduler import TieredScheduler, make_tiered

from agentcache.engine.rpc.job_views import view_session
from agentcache.engine.rpc.snapshot import make_snapshot

LONGER = PROMPT + make_tokens(9, 30)
WHOLE = len(PROMPT) // BLOCK_SIZE * BLOCK_SIZE


def admit(lone: TieredScheduler) -> dict[str, int]:
    """Run until nothing is left. Return the tokens that each request hit."""
    hits: dict[str, int] = {}
    steps = 0
    while not lone.idle:
        hits.update(lone.step().hit_tokens)
        steps += 1
        assert steps < 500, "nothing goes on"
    return hits


def test_a_failed_store_is_as_if_never_made(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path)
    tier = lone.scheduler.tier
    lone.fails = 1.0
    lone.store_ahead()
    ask(lone, "mine/0", PROMPT)
    lone.run_until_idle()
    assert tier.host.used_blocks == 0 == tier.counts.stored == tier.counts.overwritten
    assert tier.counts.failed_stores >= WHOLE // BLOCK_SIZE
    push_out(lone, 1, 2, 3, 4)
    assert lone.find_blocks(PROMPT) == []
    lone.fails = 0.0
    ask(lone, "mine/1", LONGER)
    assert admit(lone) == {"mine/1": 0}
    assert tier.counts.fetched == 0
    (job,) = view_session(lone.scheduler.tracker, "mine")
    assert job.turns[1].evicted_from == {"overwritten": WHOLE}


def test_what_was_not_stored_is_chosen_again(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path)
    lone.fails = 1.0
    ask(lone, "mine/0", PROMPT)
    lone.run_until_idle()
    lone.fails = 0.0
    push_out(lone, 1, 2, 3, 4)
    assert lone.find_blocks(PROMPT) == []
    ask(lone, "mine/1", LONGER)
    assert admit(lone) == {"mine/1": WHOLE}


def test_a_block_whose_store_failed_is_dear_again(tiny_model_path: str) -> None:
    """While it was copied it went last, whatever it is worth."""
    lone = make_tiered(tiny_model_path, blocks=60)
    lone.fails = 1.0
    ask(lone, "old/0", PROMPT, last=True)
    lone.run_until_idle()
    ask(lone, "new/0", make_tokens(1, 150), last=True)
    lone.run_until_idle()
    order = [block.block_hash for block in lone.scheduler.block_queue.get_all_free_blocks() if block.block_hash]
    old = {block.block_hash for block in lone.pool.blocks if block.block_id in lone.find_blocks(PROMPT)}
    assert set(order[: len(old)]) == old


def test_a_failed_fetch_sends_its_request_to_compute(tiny_model_path: str) -> None:
    lone = make_evicted(tiny_model_path)
    tier = lone.scheduler.tier
    held = tier.host.used_blocks
    lone.fails = 1.0
    ask(lone, "mine/1", LONGER)
    assert admit(lone) == {"mine/1": 0}
    assert tier.counts.fetched == 0
    assert tier.counts.failed_fetches == WHOLE // BLOCK_SIZE, "it was tried once"
    assert tier.host.used_blocks == held
    (job,) = view_session(lone.scheduler.tracker, "mine")
    assert job.turns[1].waits["fetch"] > 0
    assert job.turns[1].hits == {"gpu": 0, "host": 0}
    assert job.turns[1].evicted_from == {"not fetched": WHOLE}
    assert lone.pool.get_num_free_blocks() == lone.pool.num_gpu_blocks - 1


def test_others_fetch_what_one_could_not(tiny_model_path: str) -> None:
    lone = make_evicted(tiny_model_path)
    lone.fails = 1.0
    ask(lone, "mine/1", LONGER)
    lone.run_until_idle()
    lone.fails = 0.0
    push_out(lone, 1, 2, 3, 4)
    ask(lone, "mine/2", LONGER)
    assert admit(lone)["mine/2"] >= WHOLE


def test_a_part_that_failed_leaves_those_before_it(tiny_model_path: str) -> None:
    lone = make_evicted(tiny_model_path)
    lone.scheduler.tier.copies.most_fetched = 4
    ask(lone, "mine/1", LONGER)
    while not lone.scheduler.tier.counts.fetched:
        lone.step()
    lone.fails = 1.0
    assert admit(lone) == {"mine/1": 4 * BLOCK_SIZE}
    (job,) = view_session(lone.scheduler.tracker, "mine")
    assert job.turns[1].hits == {"gpu": 0, "host": 4 * BLOCK_SIZE}


def test_what_another_computes_is_hit_not_what_failed(tiny_model_path: str) -> None:
    """It computes while the first request, whose fetch has failed, waits for a place among those that run."""
    lone = make_evicted(tiny_model_path)
    for number in range(5):
        ask(lone, f"runs-{number}/0", make_tokens(20 + number, 10), tokens=12)
    lone.step()
    lone.pace = 0.0
    ask(lone, "mine/1", LONGER)
    lone.step()
    (copy,) = [copy for copy in lone.copies if not copy.is_store]
    copy.fails = True
    ask(lone, "twin/0", LONGER, tokens=12)
    # As one that wants logprobs of its prompt, so that it waits for nothing.
    lone.scheduler.requests["twin/0"].skip_reading_prefix_cache = True
    for _ in range(3):
        lone.step()
    assert len(lone.scheduler.running) == 6
    assert len(lone.find_blocks(PROMPT)) == WHOLE // BLOCK_SIZE
    lone.pace = 1.0
    hits = admit(lone)["mine/1"]
    assert hits >= WHOLE
    assert lone.scheduler.tier.counts.failed_fetches == WHOLE // BLOCK_SIZE
    (job,) = view_session(lone.scheduler.tracker, "mine")
    assert job.turns[1].hits == {"gpu": hits, "host": 0}


def rank_copies(lone: TieredScheduler) -> list[int]:
    """List the blocks of the CPU cache by their worth, the least first."""
    return [block.block_id for block in lone.host_pool.free_block_queue.get_all_free_blocks() if block.block_hash]


def test_aborted_before_its_fetch_fails(tiny_model_path: str) -> None:
    """Sources are worth what they are where the request is aborted before it asks for them."""
    lone, other = make_evicted(tiny_model_path), make_evicted(tiny_model_path)
    lone.pace, lone.fails = 0.0, 1.0
    ask(lone, "mine/1", LONGER)
    ask(other, "mine/1", LONGER)
    other.abort("mine/1")
    lone.step()
    assert any(not copy.is_store for copy in lone.copies)
    lone.abort("mine/1")
    lone.pace = 1.0
    lone.run_until_idle()
    other.scheduler.clock.now_s = lone.scheduler.clock.now_s
    assert rank_copies(lone) == rank_copies(other)
    assert lone.scheduler.tier.counts.failed_fetches == WHOLE // BLOCK_SIZE
    assert lone.pool.get_num_free_blocks() == lone.pool.num_gpu_blocks - 1


@pytest.mark.parametrize("seed", range(pick_size(3, 60)))
def test_rows_read_their_own_whatever_fails(seed: int, tiny_model_path: str) -> None:
    def fail(lone: TieredScheduler) -> None:
        lone.fails = (0.2, 0.6, 1.0)[seed % 3]

    lone = run_at_random(tiny_model_path, seed, fail)
    tier = lone.scheduler.tier
    assert tier.counts.failed_stores + tier.counts.failed_fetches > 0
    assert lone.pool.get_num_free_blocks() == lone.pool.num_gpu_blocks - 1
    assert not tier.host.find_used()


def test_seconds_are_counted_of_what_was_copied(tiny_model_path: str) -> None:
    """Each copy takes half a second; those that fail take none."""
    lone = make_evicted(tiny_model_path)
    before = make_snapshot(lone.scheduler).tier
    assert before is not None
    assert before.store_s >= 0.5
    assert before.fetch_s == 0.0
    ask(lone, "mine/1", LONGER)
    lone.run_until_idle()
    after = make_snapshot(lone.scheduler).tier
    assert after is not None
    assert (after.fetch_s, after.failed_fetches) == (0.5, 0)
    lone.fails = 1.0
    push_out(lone, 5)
    failed = make_snapshot(lone.scheduler).tier
    assert failed is not None
    assert (failed.store_s, failed.fetch_s) == (after.store_s, after.fetch_s)
    assert failed.failed_stores > 0
