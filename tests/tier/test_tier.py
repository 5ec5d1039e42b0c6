"""Two caches under one scheduler: what comes back from the CPU cache is what was computed, whatever happens."""

from __future__ import annotations

from unittest import mock

import pytest
from lone_scheduler import BLOCK_SIZE, LoneScheduler
from sizes import pick_size
from steered_scheduler import make_lone
from tiered_jobs import PROMPT, ask, make_evicted, make_tokens, push_out, run_at_random
from tiered_scheduler import TieredScheduler, make_tiered


def begin_fetch(lone: TieredScheduler) -> None:
    """The job is back, and its blocks do not come."""
    lone.pace = 0.0
    ask(lone, "mine/1", PROMPT + make_tokens(9, 30))
    lone.step()


def test_evicted_turn_is_fetched_not_computed(tiny_model_path: str) -> None:
    lone = make_evicted(tiny_model_path)
    ask(lone, "mine/1", PROMPT + make_tokens(9, 30))
    hits = {}
    while not lone.idle:
        hits.update(lone.step().hit_tokens)
    assert hits == {"mine/1": len(PROMPT) // BLOCK_SIZE * BLOCK_SIZE}
    assert lone.scheduler.tier.counts.fetched >= len(PROMPT) // BLOCK_SIZE
    stats = lone.scheduler.comparison.stats
    assert stats.reused_tokens == hits["mine/1"], "LRU has no tier"
    assert stats.lru_tokens == 0 < stats.saved_s


def test_the_host_is_told_what_the_gpu_uses_of_its_blocks(tiny_model_path: str) -> None:
    lone = make_evicted(tiny_model_path)
    host = lone.scheduler.tier.host
    with mock.patch.object(host, "note_hits", wraps=host.note_hits) as note_hits:
        ask(lone, "mine/1", PROMPT + make_tokens(9, 30))
        lone.run_until_idle()
    (keys,) = note_hits.call_args.args
    assert len(keys) == len(PROMPT + make_tokens(9, 30)) // BLOCK_SIZE
    assert sum(map(host.map.holds, keys)) >= len(PROMPT) // BLOCK_SIZE
    assert not host.find_used()


@pytest.mark.parametrize("policy", ["agentcache", "agentcache-interactive", "agentcache-throughput"])
def test_waits_beside_a_cpu_cache_are_short(tiny_model_path: str, policy: str) -> None:
    beside, alone = make_tiered(tiny_model_path, policy=policy), make_lone(tiny_model_path, policy)
    assert beside.scheduler.tracker.waiting.patience_s == 5.0 < alone.scheduler.tracker.waiting.patience_s


def test_what_is_new_is_computed_whatever_the_host_has(tiny_model_path: str) -> None:
    sizes = [(prompt, reply) for prompt in (20, 600, 1300, 2000) for reply in range(20, 30)]
    engine = {"max_model_len": 2048}

    def list_small(lone: LoneScheduler) -> list[tuple[int, int]]:
        """Those that keep their place by arrival, since prefill and reply take so little time."""
        for prompt, reply in sizes:
            lone.add(f"{prompt}/{reply}", make_tokens(prompt + reply, prompt), reply)
        states = lone.scheduler.tracker.states
        return [(prompt, reply) for prompt, reply in sizes if states[f"{prompt}/{reply}"].priority.by_arrival]

    beside = list_small(make_tiered(tiny_model_path, engine=engine))
    assert beside == list_small(make_lone(tiny_model_path, "agentcache", engine=engine))
    assert len({max(reply for prompt, reply in beside if prompt == each) for each, _ in sizes}) > 1


def test_block_is_dear_again_when_the_host_loses_its_copy(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path)
    queue, host = lone.scheduler.block_queue, lone.scheduler.tier.host
    lone.store_ahead()
    for name in ("mine/0", "next/0"):
        ask(lone, name, [*name.encode(), *PROMPT], last=True)
        lone.run_until_idle()
    cached = [block for block in queue.get_all_free_blocks() if block.block_hash is not None]
    keys = [block.block_hash for block in cached]
    assert all(map(host.map.holds, keys))
    host.reserve(lone.host_pool.get_num_free_blocks() - len(cached) + 1)
    (lost,) = [block for block, key in zip(cached, keys, strict=True) if not host.map.holds(key)]
    # The GPU's is the only one now, so it is dearer than those that are stored.
    assert queue.get_all_free_blocks()[-1] is lost is not cached[-1]


def test_others_pass_a_request_that_waits_for_its_blocks(tiny_model_path: str) -> None:
    lone = make_evicted(tiny_model_path)
    lone.pace = 0.0
    ask(lone, "mine/1", PROMPT + make_tokens(9, 30))
    ask(lone, "new/0", make_tokens(8, 40))
    scheduled = [set(lone.step().scheduled) for _ in range(3)]
    assert scheduled[0] == {"new/0"}
    assert all("mine/1" not in names for names in scheduled)
    lone.pace = 1.0
    lone.run_until_idle()


def test_what_nobody_fetches_is_stored_no_more(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path, host_blocks=2000)
    lone.scheduler.tier.storing.usefulness.least_share = 0.05
    for finish_class in range(8):
        lone.scheduler.tier.storing.usefulness.note_lost([finish_class] * 5000)
    for seed in range(9):
        ask(lone, f"over-{seed}/0", make_tokens(seed, 300), last=True)
        lone.run_until_idle()
    stats = lone.scheduler.tier.counts
    assert stats.stored == 0
    assert stats.avoided > 100


@pytest.mark.parametrize(("host_blocks", "gives_up"), [(2000, False), (60, True)])
def test_copies_count_against_their_like_once_they_are_lost(
    tiny_model_path: str, host_blocks: int, gives_up: bool
) -> None:
    lone = make_tiered(tiny_model_path, host_blocks=host_blocks)
    lone.scheduler.tier.storing.usefulness.least_share = 0.45
    for seed in range(20):
        # Its tool runs on.
        ask(lone, f"away-{seed}/0", make_tokens(seed, 300))
        lone.run_until_idle()
    stats = lone.scheduler.tier.counts
    assert stats.stored > 100
    assert (stats.avoided > 0) == gives_up


def test_copy_is_thrown_away_when_its_block_was_reused(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path, blocks=24)
    ask(lone, "mine/0", PROMPT)
    lone.run_until_idle()
    lone.pace = 0.0
    for seed in (1, 2, 3):
        ask(lone, f"other-{seed}/0", make_tokens(seed, 200))
    while lone.scheduler.requests:
        lone.step()
    assert lone.copies
    lone.pace = 1.0
    lone.run_until_idle()
    assert lone.scheduler.tier.counts.overwritten > 0


def test_aborted_request_leaves_what_is_under_way(tiny_model_path: str) -> None:
    lone = make_evicted(tiny_model_path)
    begin_fetch(lone)
    lone.abort("mine/1")
    lone.scheduler.check_integrity()
    push = make_tokens(7, 300)
    ask(lone, "other-7/0", push)
    for _ in range(5):
        lone.step()
    lone.pace = 1.0
    lone.run_until_idle()
    # What has come is cached like any other.
    assert len(lone.find_blocks(PROMPT)) in range(10)


def test_reset_waits_for_copies_and_then_forgets_all(tiny_model_path: str) -> None:
    lone = make_evicted(tiny_model_path)
    begin_fetch(lone)
    assert not lone.scheduler.reset_prefix_cache(reset_connector=True)
    lone.pace = 1.0
    lone.run_until_idle()
    assert lone.scheduler.reset_prefix_cache(reset_connector=True)
    assert lone.scheduler.tier.host.used_blocks == 0
    before = lone.scheduler.tier.counts.fetched
    ask(lone, "mine/2", PROMPT)
    lone.run_until_idle()
    assert lone.scheduler.tier.counts.fetched == before


def test_reset_ends_what_fills_gaps_beside_the_tier(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path, engine={"max_num_batched_tokens": 16})
    ask(lone, "mine/0", PROMPT)
    lone.run_until_idle()
    cached = lone.find_blocks(PROMPT)
    assert lone.scheduler.tier.clear()
    lone.pool.evict_blocks(set(cached[2:5]))
    ask(lone, "mine/1", PROMPT)
    lone.step()
    assert lone.scheduler.gap_filler.rows
    assert lone.scheduler.reset_prefix_cache(reset_running_requests=True)
    lone.run_until_idle()
    assert lone.pool.get_num_free_blocks() == lone.pool.num_gpu_blocks - 1


@pytest.mark.parametrize("seed", range(pick_size(3, 60)))
def test_rows_read_their_own_keys_and_values(seed: int, tiny_model_path: str) -> None:
    lone = run_at_random(tiny_model_path, seed)
    assert lone.pool.get_num_free_blocks() == lone.pool.num_gpu_blocks - 1


def test_block_goes_last_while_it_is_copied(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path, blocks=24, host_blocks=4)
    lone.store_ahead(4)
    for seed in range(4):
        ask(lone, f"other-{seed}/0", make_tokens(seed, 170), last=True)
        lone.run_until_idle()
    pool, queue, stats = lone.pool, lone.scheduler.block_queue, lone.scheduler.tier.counts
    stored = stats.stored
    assert lone.scheduler.tier.clear()
    # An idle engine looks at nothing that it has looked at.
    lone.scheduler.tier.storing.looks.is_awaited = True
    lone.pace = 0.0
    free = queue.get_all_free_blocks()
    # What has no KV goes first, and is not copied.
    cached = [block.block_id for block in free if block.block_hash is not None]
    lone.step()
    copied = {source for copy in lone.copies for source, _ in copy.left}
    assert cached[0] in copied, "it would have gone next"
    assert copied == {block.block_id for block in queue.get_all_free_blocks()[-len(copied) :]}
    # Who takes all others leaves these to be copied.
    pool.free_blocks(pool.get_new_blocks(len(free) - len(copied)))
    lone.pace = 1.0
    lone.run_until_idle()
    assert stats.overwritten == 0
    assert stats.stored - stored >= len(copied)


def test_a_step_copies_no_more_than_it_may_next_victims_first(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path)
    tier, queue = lone.scheduler.tier, lone.scheduler.block_queue
    storing = tier.storing
    lone.store_ahead(most=4)
    with mock.patch.object(storing.usefulness, "is_useful", return_value=False):
        ask(lone, "mine/0", PROMPT)
        lone.run_until_idle()
    cached = [block.block_id for block in queue.list_victims(lone.pool.num_gpu_blocks) if block.block_hash is not None]
    lone.pace = 0.0
    ask(lone, "other/0", make_tokens(1, 40), tokens=20)
    for step in range(1, 3):
        lone.step()
        chosen = [block.block_id for store in tier.copies.stores.values() for block in store.blocks]
        assert chosen == cached[: 4 * step]
    lone.pace = 1.0
    lone.run_until_idle()
    assert storing.counts.stored >= len(cached)
    assert storing.counts.overwritten == 0


@pytest.mark.parametrize("most", [5, 1000])
@pytest.mark.parametrize("pace", [1.0, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_jobs_that_come_back_at_once_fetch_in_turn(seed: int, pace: float, most: int, tiny_model_path: str) -> None:
    """Together they want several times what the GPU holds: each keeps what it has fetched until it runs."""
    lone = make_tiered(tiny_model_path, seed=seed, host_blocks=400)
    prompts = {f"job-{number}": make_tokens(number, (9 + 2 * number) * BLOCK_SIZE) for number in range(8)}
    for job, prompt in prompts.items():
        ask(lone, f"{job}/0", prompt)
        lone.run_until_idle()
    lone.pace = pace
    lone.scheduler.tier.copies.most_fetched = most
    for number, (job, prompt) in enumerate(prompts.items()):
        ask(lone, f"{job}/1", prompt + make_tokens(100 + number, 3 * BLOCK_SIZE))
    steps = 0
    while not lone.idle:
        lone.step()
        steps += 1
        assert steps < 400, "they take from each other what they have fetched"
    hosted = sum(len(prompt) // BLOCK_SIZE for prompt in prompts.values())
    assert lone.scheduler.tier.counts.fetched <= 2 * hosted


def test_idle_engine_copies_what_was_left_and_rests(tiny_model_path: str) -> None:
    """Its copies take longer than the time between looks, and the CPU cache has room for a part of the victims."""
    lone = make_tiered(tiny_model_path, blocks=48, host_blocks=24, pace=0.05)
    for seed in range(6):
        ask(lone, f"job-{seed}/0", make_tokens(seed, 24 * BLOCK_SIZE))
        while lone.scheduler.requests:
            lone.step()
    storing = lone.scheduler.tier.storing
    stored = storing.counts.stored
    lone.run_until_idle()
    assert not lone.scheduler.tier.needs_step
    assert storing.counts.stored - stored <= 2 * lone.scheduler.tier.counts.total


def test_fetches_that_fill_the_link_begin_one_after_another(tiny_model_path: str) -> None:
    """The first request runs as soon as its own blocks have come, and a small one does not pass a large one."""
    lone = make_tiered(tiny_model_path, blocks=64, host_blocks=400)
    lone.store_ahead()
    prompts = [make_tokens(number, blocks * BLOCK_SIZE) for number, blocks in enumerate((18, 20, 3))]
    for number, prompt in enumerate(prompts):
        ask(lone, f"job-{number}/0", prompt)
        lone.run_until_idle()
    push_out(lone, 11, 12, 13, 14)
    lone.pace = 0.3
    lone.scheduler.tier.copies.most_fetched = 10
    for number, prompt in enumerate(prompts):
        ask(lone, f"job-{number}/1", prompt + make_tokens(100 + number, 2 * BLOCK_SIZE), tokens=1)
    ran: list[str] = []
    while not lone.idle:
        ran += [name for name in lone.step().scheduled if name not in ran]
        for fetch in lone.scheduler.tier.copies.fetches:
            assert len(fetch.blocks) <= 10
    assert ran == ["job-0/1", "job-1/1", "job-2/1"]


def test_a_large_fetch_comes_in_parts(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path, blocks=64, host_blocks=400)
    prompt = make_tokens(0, 18 * BLOCK_SIZE)
    ask(lone, "mine/0", prompt)
    lone.run_until_idle()
    push_out(lone, 11, 12, 13, 14)
    lone.pace = 0.3
    tier = lone.scheduler.tier
    tier.copies.most_fetched = 7
    fetched = tier.counts.fetched
    ask(lone, "mine/1", prompt + make_tokens(1, 5))
    parts: list[frozenset[int]] = []
    while not lone.idle:
        lone.step()
        under_way = (frozenset(block.block_id for block in fetch.blocks) for fetch in tier.copies.fetches)
        parts += [blocks for blocks in under_way if blocks not in parts]
    assert list(map(len, parts)) == [7, 7, 4]
    assert tier.counts.fetched - fetched == 18


def lose_to_fetches(model_path: str, most: int) -> int:
    """Six jobs in turn, which both caches hold: how many tokens are computed again, if parts have `most` blocks."""
    lone = make_tiered(model_path, blocks=64, host_blocks=56)
    lone.store_ahead(8)
    lone.scheduler.tier.copies.most_fetched = most
    prompts = [make_tokens(number, 18 * BLOCK_SIZE + 5) for number in range(6)]
    hits: dict[str, int] = {}
    for turn in range(5):
        for number, prompt in enumerate(prompts):
            ask(lone, f"job-{number}/{turn}", prompt, tokens=1)
            while not lone.idle:
                hits.update(lone.step().hit_tokens)
    return 4 * 6 * 18 * BLOCK_SIZE - sum(hits.values())


def test_a_fetch_in_parts_loses_less_of_what_others_have(tiny_model_path: str) -> None:
    """What gives way on the GPU is stored where the part before has come from."""
    assert lose_to_fetches(tiny_model_path, 4) < lose_to_fetches(tiny_model_path, 100) / 2
