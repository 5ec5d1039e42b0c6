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
from live_engine import BLOCK, ColdEngine, LiveEngine, assert_same, make_prompt
from pushed_out import SEARCH, push_out, settle
from sizes import pick_size
from tiered_engine import BLOCK_BYTES, start_tiered
from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown, get_kv_transfer_group
from vllm.v1.core.kv_cache_utils import get_block_hash

from agentcache.engine.rpc.job_views import view_session
from agentcache.engine.rpc.snapshot import EngineSnapshot, make_snapshot
from agentcache.engine.vllm import copiers
from agentcache.server.metrics import render_metrics
from agentcache.server.snapshot_reader import Reading

pytestmark = pytest.mark.engine

PROMPT = make_prompt(seed=1, tokens=20 * BLOCK + 7)


@pytest.fixture(scope="module")
def cold(tiny_model_path: str) -> LiveEngine:
    return ColdEngine(tiny_model_path)


# With these seeds no reply happens to end at the token that ends a recorded one.
@pytest.mark.parametrize(("host_blocks", "seed"), [(30, 9), (4, 4), (300, 9)][: pick_size(1, 3)])
def test_replies_over_two_caches_equal_cold_ones(
    host_blocks: int, seed: int, cold: LiveEngine, tiny_model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_tiered(tiny_model_path, host_blocks) as engine:
        tier = engine.scheduler.tier
        assert tier.counts.total == host_blocks
        crowd = Crowd(engine, random.Random(seed))
        note_preemptions(engine, crowd.preempted, monkeypatch)
        crowd.run(jobs=6, turns=4)
    assert_equal_to_cold(crowd, cold)
    assert len(crowd.turns) == 24
    assert crowd.preempted
    if host_blocks > 4:
        assert tier.counts.fetched > 10
        assert tier.counts.stored > 10


@pytest.mark.parametrize(("every", "seed"), [(1, 4), (2, 9), (3, 9)][: pick_size(2, 3)])
def test_replies_are_cold_ones_whatever_copies_fail(
    every: int, seed: int, cold: LiveEngine, tiny_model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each `every`-th copy fails, when its first layer has been written over. The seeds are chosen as above."""
    numbers = itertools.count(1)
    copy = copiers.assign_blocks

    def fail(sources: Any, read: list[int], targets: Any, written: list[int]) -> None:
        if next(numbers) % every:
            copy(sources, read, targets, written)
            return
        first = next(iter(targets.values()))
        first[written] = torch.randint_like(first[written], 100)
        raise RuntimeError("batch memcpy failed")

    monkeypatch.setattr(copiers, "assign_blocks", fail)
    with start_tiered(tiny_model_path, 300) as engine:
        tier = engine.scheduler.tier
        crowd = Crowd(engine, random.Random(seed))
        crowd.run(jobs=6, turns=4)
        settle(engine)
        engine.scheduler.check_integrity()
        assert not tier.host.find_used()
    assert_equal_to_cold(crowd, cold)
    assert len(crowd.turns) == 24
    assert tier.counts.failed_stores > 10
    if every == 1:
        assert tier.counts.stored == tier.host.used_blocks == tier.counts.store_s == 0
    else:
        assert tier.counts.failed_fetches > 10
        assert tier.counts.fetched > 10
        assert min(tier.counts.store_s, tier.counts.fetch_s) > 0


def test_what_is_fetched_is_what_was_stored(cold: LiveEngine, tiny_model_path: str) -> None:
    expected = cold.ask(PROMPT, 16)
    with start_tiered(tiny_model_path, 300) as engine:
        engine.ask(PROMPT, 16, session="mine", calls=[SEARCH])
        push_out(engine)
        before = engine.scheduler.tier.counts.fetched
        reply = engine.ask(PROMPT, 16, session="mine", calls=[SEARCH])
        fetched = engine.scheduler.tier.counts.fetched - before
        (job,) = view_session(engine.scheduler.tracker, "mine")
    assert fetched > 10
    assert job.turns[-1].hits == {"gpu": (20 - fetched) * BLOCK, "host": fetched * BLOCK}
    assert reply.cached == 20 * BLOCK
    assert_same(reply, expected)


def test_what_the_host_lost_is_told(tiny_model_path: str) -> None:
    with start_tiered(tiny_model_path, 12) as engine:
        engine.ask(PROMPT, 16, session="mine", calls=[SEARCH])
        push_out(engine)
        engine.ask(PROMPT, 16, session="mine", calls=[SEARCH])
        (job,) = view_session(engine.scheduler.tracker, "mine")
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
        connector: Any = get_kv_transfer_group()
        for cache in connector.copier.on_host.values():
            cache[block.block_id] = torch.randint_like(cache[block.block_id], 100)
        reply = engine.ask(PROMPT, 16, session="mine", calls=[SEARCH])
    assert reply.logprobs != pytest.approx(expected.logprobs, abs=2e-3)


@contextmanager
def start_on_disk(model_path: str, folder: Path, host_blocks: int) -> Iterator[LiveEngine]:
    """The same over vLLM's own tiers, of so much memory and a folder."""
    engine = LiveEngine(
        model_path,
        policy="agentcache",
        kv_transfer_config=make_disk_config(folder, host_blocks * BLOCK_BYTES),
        num_gpu_blocks_override=BLOCKS,
    )
    try:
        yield engine
    finally:
        ensure_kv_transfer_shutdown()


# The other jobs use 30 blocks each: one of them pushes the first out of 32, three out of 200 push nobody.
@pytest.mark.parametrize(("host_blocks", "place"), [(32, "disk"), (200, "host")])
def test_vllms_tier_on_disk_works_under_our_policy(
    host_blocks: int, place: str, cold: LiveEngine, tiny_model_path: str, tmp_path: Path
) -> None:
    expected = cold.ask(PROMPT, 16)
    with start_on_disk(tiny_model_path, tmp_path, host_blocks) as engine:
        engine.ask(PROMPT, 16, session="mine", calls=[SEARCH])
        push_out(engine)
        settle(engine)
        reply = engine.ask(PROMPT, 16, session="mine", calls=[SEARCH])
        engine.ask(PROMPT, 16, session="mine", calls=[SEARCH])
        engine.scheduler.check_integrity()
        assert engine.scheduler.comparison is None, "LRU would have that tier as well"
        (job,) = view_session(engine.scheduler.tracker, "mine")
        counts = EngineSnapshot(engine=0, **make_snapshot(engine.scheduler).model_dump())
    assert reply.cached == 20 * BLOCK
    assert_same(reply, expected)
    none = {"gpu": 0, "host": 0}
    assert [turn.hits for turn in job.turns] == [none, none | {place: 20 * BLOCK}, none | {"gpu": 20 * BLOCK}]
    metrics = render_metrics(Reading((counts,), 0.0)).decode()
    assert f'agentcache:hit_tokens_by_place_total{{engine="0",place="{place}"}} {20 * BLOCK}.0' in metrics


def test_one_wrong_block_on_disk_is_seen(cold: LiveEngine, tiny_model_path: str, tmp_path: Path) -> None:
    expected = cold.ask(PROMPT, 16)
    with start_on_disk(tiny_model_path, tmp_path, 32) as engine:
        engine.ask(PROMPT, 16, session="mine", calls=[SEARCH])
        push_out(engine)
        settle(engine)
        key = get_block_hash(engine.block_keys(PROMPT)[10]).hex()
        (file,) = tmp_path.rglob(f"*{key}*.bin")
        file.write_bytes(random.Random(1).randbytes(file.stat().st_size))
        reply = engine.ask(PROMPT, 16, session="mine", calls=[SEARCH])
    assert reply.logprobs != pytest.approx(expected.logprobs, abs=2e-3)
