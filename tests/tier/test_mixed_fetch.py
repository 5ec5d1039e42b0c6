"""A context whose head is computed and whose tail is fetched, in one admission: replies are those of a cold engine."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from live_engine import BLOCK, ColdEngine, LiveEngine, assert_same, make_prompt
from lone_scheduler import BLOCK_SIZE
from pushed_out import SEARCH, push_out
from sizes import pick_size
from tiered_jobs import PROMPT, ask, make_evicted, make_tokens, run_at_random
from tiered_scheduler import TieredScheduler, make_tiered
from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown
from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId

from agentcache.engine.cpu_cache.options import make_transfer_config
from agentcache.engine.rpc.job_views import view_session
from agentcache.engine.scheduler import AgentScheduler
from agentcache.policy.link_profile import Link

HEAD = 4


def slow_down(scheduler: AgentScheduler, head: int) -> None:
    """Have the link take as long for a block as computing the last of a prompt's first `head` blocks does."""
    assert scheduler.tier is not None
    fetching = scheduler.tier.fetching
    fetching.link = Link(latency_s=0.0, block_s=scheduler.gap_filler.costs.block_s(head - 1))


def come_back(lone: TieredScheduler) -> tuple[int, int]:
    """Return the tokens that the job's next turn computes in gaps, and the blocks that it fetches."""
    filler, tier = lone.scheduler.gap_filler, lone.scheduler.tier
    filled, fetched = filler.stats.fill_tokens, tier.counts.fetched
    ask(lone, "mine/1", PROMPT + make_tokens(9, 30))
    lone.run_until_idle()
    return filler.stats.fill_tokens - filled, tier.counts.fetched - fetched


def test_a_head_is_computed_and_its_tail_fetched(tiny_model_path: str) -> None:
    lone = make_evicted(tiny_model_path)
    slow_down(lone.scheduler, HEAD)
    assert come_back(lone) == (HEAD * BLOCK_SIZE, len(PROMPT) // BLOCK_SIZE - HEAD)


def test_without_gaps_nothing_is_fetched_behind_a_computed_head(tiny_model_path: str) -> None:
    lone = make_evicted(tiny_model_path)
    slow_down(lone.scheduler, HEAD)
    lone.scheduler.gap_filler.max_gaps = 0
    assert come_back(lone) == (0, 0)


def test_while_others_run_nothing_is_computed_for_long(tiny_model_path: str) -> None:
    lone = make_evicted(tiny_model_path)
    slow_down(lone.scheduler, HEAD)
    for seed in (5, 6):
        ask(lone, f"runs-{seed}/0", make_tokens(seed, 5), tokens=60)
    lone.step()
    assert come_back(lone) == (0, len(PROMPT) // BLOCK_SIZE)


def lose(lone: TieredScheduler, keys: Sequence[BlockHashWithGroupId], *, host: bool = False) -> None:
    """Have the GPU's cache, and the host's as well, forget blocks."""
    lone.pool.evict_blocks({block.block_id for block in lone.scheduler.gap_filler.finder.cache.find_blocks(keys)})
    if host:
        blocks = lone.scheduler.tier.host.map.find_blocks(keys)
        lone.host_pool.evict_blocks({block.block_id for block in blocks})


def test_gaps_that_were_filled_count(tiny_model_path: str) -> None:
    """What lies behind one more could not be reused."""
    head = 6  # As many as a step computes.
    lone = make_evicted(tiny_model_path)
    filler, tier = lone.scheduler.gap_filler, lone.scheduler.tier
    slow_down(lone.scheduler, head)
    filler.max_gaps = 1
    ask(lone, "mine/1", PROMPT + make_tokens(9, 30))
    request = lone.scheduler.requests["mine/1"]
    while not filler.has_begun(request):
        lone.step()
    keys = filler.finder.keys.find(request)[0]
    lose(lone, keys[7:8], host=True)
    lose(lone, keys[8:9])
    fetched = tier.counts.fetched
    lone.run_until_idle()
    assert (fetched, tier.counts.fetched) == (9 - head, 9 - head)


@pytest.mark.parametrize(
    ("blocks", "max_gaps", "lost", "reused"),
    [
        # All that the GPU has lies behind a gap.
        (24, 0, [(4, 6)], 4),
        # A gap is filled in front of the last eleven, and what lies within it is computed with it.
        (21, 1, [(2, 3), (6, 7)], 18),
    ],
)
def test_what_is_held_in_vain_gives_way(
    blocks: int, max_gaps: int, lost: list[tuple[int, int]], reused: int, tiny_model_path: str
) -> None:
    """The cache is too small for blocks that are held and those that are computed in their place; nothing else runs."""
    prompt = make_tokens(1, 300)
    lone = make_tiered(tiny_model_path, blocks=blocks)
    ask(lone, "mine/0", prompt)
    lone.run_until_idle()
    ask(lone, "mine/1", prompt + make_tokens(2, 16))
    filler = lone.scheduler.gap_filler
    keys = filler.finder.keys.find(lone.scheduler.requests["mine/1"])[0]
    lose(lone, keys[: lost[0][0]])
    for start, end in lost:
        lose(lone, keys[start:end], host=True)
    filler.max_gaps = max_gaps
    found: dict[str, int] = {}
    for _ in range(30):
        found.update(lone.step().hit_tokens)
    assert found["mine/1"] + filler.stats.fill_tokens == reused * BLOCK_SIZE
    assert lone.idle


@pytest.mark.parametrize("seed", range(pick_size(2, 40)))
def test_rows_read_their_own_keys_behind_computed_heads(seed: int, tiny_model_path: str) -> None:
    lone = run_at_random(tiny_model_path, seed, lambda lone: slow_down(lone.scheduler, HEAD))
    assert lone.pool.get_num_free_blocks() == lone.pool.num_gpu_blocks - 1


@pytest.mark.engine
def test_reply_over_a_mixed_fetch_equals_a_cold_one(tiny_model_path: str) -> None:
    prompt, blocks, head = make_prompt(seed=1, tokens=20 * BLOCK + 7), 20, 12
    expected = ColdEngine(tiny_model_path).ask(prompt, 16)
    # Of the tiny model, in float32: two layers of two heads of 32, keys and values.
    host_bytes = 300 * 2 * 2 * 2 * 32 * 4 * BLOCK
    engine = LiveEngine(
        tiny_model_path,
        policy="agentcache",
        knobs={"tier": {"link_gb_s": 1e6}, "tuning": {"link_latency_s": 0.0}},
        kv_transfer_config=make_transfer_config(host_bytes, steered=True, lazy=False),
        num_gpu_blocks_override=37,
    )
    # Between two turns of a job lie some hundred looks at the clock.
    engine.scheduler.clock = itertools.count(1.0, 0.01).__next__
    try:
        engine.ask(prompt, 16, session="mine", calls=[SEARCH])
        push_out(engine)
        slow_down(engine.scheduler, head)
        filled = engine.scheduler.gap_filler.stats.fill_tokens
        reply = engine.ask(prompt, 16, session="mine", calls=[SEARCH])
        (job,) = view_session(engine.scheduler.tracker, "mine")
        filled = engine.scheduler.gap_filler.stats.fill_tokens - filled
    finally:
        ensure_kv_transfer_shutdown()
    hits = job.turns[-1].hits
    assert min(hits["gpu"], hits["host"], filled) > 0, "not all of the three in one admission"
    assert filled == head * BLOCK
    assert reply.cached == sum(hits.values()) == (blocks - head) * BLOCK
    assert_same(reply, expected)
