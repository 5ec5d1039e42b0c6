"""vLLM's CPU engine over two caches that are far too small: every reply is that of a cold engine."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from crowd import BLOCKS, Crowd, assert_equal_to_cold, note_preemptions
from disk_engine import make_disk_config
from live_engine import BLOCK, LiveEngine, assert_same, make_prompt
from pushed_out import SEARCH, push_out
from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown, get_kv_transfer_group

from agentcache.engine.tier.options import make_transfer_config

pytestmark = pytest.mark.engine

# Of the tiny model, in float32: two layers of two heads of 32, keys and values.
BLOCK_BYTES = 2 * 2 * 2 * 32 * 4 * BLOCK
PROMPT = make_prompt(seed=1, tokens=20 * BLOCK + 7)


@pytest.fixture(scope="module")
def cold(tiny_model_path: str) -> LiveEngine:
    """The oracle: stock vLLM that computes every prompt."""
    return LiveEngine(tiny_model_path, scheduler=None, enable_prefix_caching=False)


@contextmanager
def start_tiered(model_path: str, host_blocks: int) -> Iterator[LiveEngine]:
    """Everything is worth a fetch. vLLM has one worker's connector a process, so no other engine may run meanwhile."""
    engine = LiveEngine(
        model_path,
        policy="agentcache",
        knobs={"tier": {"enabled": True, "latency_s": 0.0, "link_gb_s": 1e6}},
        kv_transfer_config=make_transfer_config(host_blocks * BLOCK_BYTES, steered=True, lazy=False),
        num_gpu_blocks_override=BLOCKS,
    )
    # Between two turns of a job lie some hundred looks at the clock.
    engine.scheduler.clock = itertools.count(1.0, 0.01).__next__
    try:
        yield engine
    finally:
        ensure_kv_transfer_shutdown()


# With these seeds no reply happens to end at the token that ends a recorded one.
@pytest.mark.parametrize(("host_blocks", "seed"), [(4, 4), (30, 9), (300, 9)])
def test_replies_over_two_caches_equal_cold_ones(
    host_blocks: int, seed: int, cold: LiveEngine, tiny_model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_tiered(tiny_model_path, host_blocks) as engine:
        tier = engine.scheduler.tier
        assert tier.host.num_blocks == host_blocks
        crowd = Crowd(engine, random.Random(seed))
        note_preemptions(engine, crowd.preempted, monkeypatch)
        crowd.run(jobs=6, turns=4)
    assert_equal_to_cold(crowd, cold)
    assert len(crowd.turns) == 24
    assert crowd.preempted
    if host_blocks > 4:
        assert tier.fetched_blocks > 10
        assert tier.storing.stats.stored > 10


def test_what_is_fetched_is_what_was_stored(cold: LiveEngine, tiny_model_path: str) -> None:
    expected = cold.ask(PROMPT, 16)
    with start_tiered(tiny_model_path, 300) as engine:
        engine.ask(PROMPT, 16, session="mine", calls=[SEARCH])
        push_out(engine)
        before = engine.scheduler.tier.fetched_blocks
        reply = engine.ask(PROMPT, 16, session="mine", calls=[SEARCH])
        fetched = engine.scheduler.tier.fetched_blocks - before
        (job,) = engine.scheduler.tracker.view_session("mine")
    assert fetched > 10
    assert job.turns[-1].hits == {"gpu": (20 - fetched) * BLOCK, "host": fetched * BLOCK}
    assert reply.cached == 20 * BLOCK
    assert_same(reply, expected)


def test_what_the_host_lost_is_told(tiny_model_path: str) -> None:
    with start_tiered(tiny_model_path, 12) as engine:
        engine.ask(PROMPT, 16, session="mine", calls=[SEARCH])
        push_out(engine)
        engine.ask(PROMPT, 16, session="mine", calls=[SEARCH])
        (job,) = engine.scheduler.tracker.view_session("mine")
    turn = job.turns[-1]
    assert turn.evicted_from.get("evicted"), turn
    assert sum(turn.evicted_from.values()) == turn.misses["evicted"]
    assert sum(turn.hits.values()) + sum(turn.misses.values()) == turn.prompt_tokens


def test_one_wrong_block_in_the_hosts_memory_is_seen(cold: LiveEngine, tiny_model_path: str) -> None:
    expected = cold.ask(PROMPT, 16)
    with start_tiered(tiny_model_path, 300) as engine:
        engine.ask(PROMPT, 16, session="mine", calls=[SEARCH])
        push_out(engine)
        (block,) = engine.scheduler.tier.host.map.find_blocks([engine.block_keys(PROMPT)[10]])
        worker: Any = get_kv_transfer_group()
        for cache in worker.worker_handler.cpu_kv_caches.values():
            cache[block.block_id] = torch.randint_like(cache[block.block_id], 100)
        reply = engine.ask(PROMPT, 16, session="mine", calls=[SEARCH])
    assert reply.logprobs != pytest.approx(expected.logprobs, abs=2e-3)


def test_vllms_tier_on_disk_works_under_our_policy(cold: LiveEngine, tiny_model_path: str, tmp_path: Path) -> None:
    """The host's memory holds fewer blocks than each of the other jobs uses, so what comes back was on disk."""
    expected = cold.ask(PROMPT, 16)
    engine = LiveEngine(
        tiny_model_path,
        policy="agentcache",
        kv_transfer_config=make_disk_config(tmp_path, 24 * BLOCK_BYTES),
        num_gpu_blocks_override=BLOCKS,
    )
    try:
        engine.ask(PROMPT, 16, session="mine", calls=[SEARCH])
        push_out(engine)
        reply = engine.ask(PROMPT, 16, session="mine", calls=[SEARCH])
        engine.scheduler.check_integrity()
        assert engine.scheduler.comparison is None, "LRU would have that tier as well"
    finally:
        ensure_kv_transfer_shutdown()
    assert reply.cached == 20 * BLOCK
    assert_same(reply, expected)
