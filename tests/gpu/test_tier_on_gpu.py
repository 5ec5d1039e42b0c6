"""Replies over two caches, the GPU's and the host's, equal those of an engine that computes every prompt."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from crowd import BLOCKS, Crowd, note_preemptions
from live_engine import BLOCK, LiveEngine
from pushed_out import SEARCH, push_out, settle
from served import PROMPT, SERVED, assert_near, find_distance
from tier_knobs import KNOBS
from transformers import AutoConfig
from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown, get_kv_transfer_group

from agentcache.engine.cpu_cache.options import make_transfer_config
from agentcache.engine.vllm import copiers

pytestmark = pytest.mark.engine


@contextmanager
def start_tiered(model_path: str, host_blocks: int) -> Iterator[LiveEngine]:
    """vLLM has one worker's connector a process, so no other engine may run meanwhile."""
    host_bytes = host_blocks * find_block_bytes(model_path)
    engine = LiveEngine(
        model_path,
        policy="agentcache",
        knobs=KNOBS,
        kv_transfer_config=make_transfer_config(host_bytes, steered=True, lazy=False),
        num_gpu_blocks_override=BLOCKS,
        **SERVED,
    )
    # Between two turns of a job lie some hundred looks at the clock.
    engine.scheduler.clock = itertools.count(1.0, 0.01).__next__
    try:
        yield engine
    finally:
        ensure_kv_transfer_shutdown()


def host_caches() -> list[torch.Tensor]:
    connector: Any = get_kv_transfer_group()
    return list(connector.copier.on_host.values())


def find_block_bytes(model_path: str) -> int:
    """Of keys and values in float16."""
    config = AutoConfig.from_pretrained(model_path)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * BLOCK)


@pytest.mark.parametrize(("host_blocks", "seed"), [(30, 9), (300, 9), (300, 10)])
def test_replies_of_jobs_over_two_caches(
    *,
    host_blocks: int,
    seed: int,
    cold: LiveEngine,
    model: str,
    tolerance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with start_tiered(model, host_blocks) as engine:
        tier = engine.scheduler.tier
        assert engine.schedules_ahead
        assert tier.counts.total == host_blocks
        # What runs cannot be reset under a connector while a step is under way, in stock vLLM as well.
        crowd = Crowd(engine, random.Random(seed), resets_running=False)
        note_preemptions(engine, crowd.preempted, monkeypatch)
        crowd.run(jobs=6, turns=4)
    names = [cold.add(prompt, length) for prompt, length, _ in crowd.turns]
    cold.finish()
    assert_near(((reply, cold.reply(name)) for name, (*_, reply) in zip(names, crowd.turns, strict=True)), tolerance)
    assert tier.counts.fetched > 10
    assert tier.counts.stored > 10
    # No link copies as fast as that, nor as slowly.
    copied = tier.counts.stored + tier.counts.overwritten
    for blocks, seconds in ((copied, tier.counts.store_s), (tier.counts.fetched, tier.counts.fetch_s)):
        assert 1e7 < blocks * tier.counts.block_bytes / seconds < 1e12


def test_replies_where_copies_fail(
    *, cold: LiveEngine, model: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third copy cannot be begun."""
    numbers = itertools.count(1)
    copy_blocks = copiers.copy_blocks

    def fail(*copy: Any) -> None:
        if not next(numbers) % 3:
            raise RuntimeError("batch memcpy failed")
        copy_blocks(*copy)

    monkeypatch.setattr(copiers, "copy_blocks", fail)
    with start_tiered(model, 300) as engine:
        tier = engine.scheduler.tier
        crowd = Crowd(engine, random.Random(9), resets_running=False)
        crowd.run(jobs=6, turns=4)
        settle(engine)
        assert not tier.host.find_used()
    names = [cold.add(prompt, length) for prompt, length, _ in crowd.turns]
    cold.finish()
    assert_near(((reply, cold.reply(name)) for name, (*_, reply) in zip(names, crowd.turns, strict=True)), tolerance)
    assert tier.counts.failed_stores
    assert tier.counts.failed_fetches


@pytest.mark.parametrize("is_wrong", [False, True], ids=["as stored", "one wrong block"])
def test_what_is_fetched(*, is_wrong: bool, cold: LiveEngine, model: str, tolerance: float) -> None:
    expected = cold.ask(PROMPT, 16)
    with start_tiered(model, 300) as engine:
        engine.ask(PROMPT, 16, session="mine", calls=[SEARCH])
        push_out(engine)
        settle(engine)
        if is_wrong:
            (block,) = engine.scheduler.tier.host.map.find_blocks([engine.block_keys(PROMPT)[10]])
            for cache in host_caches():
                cache[block.block_id] = torch.randint_like(cache[block.block_id], 100)
        before = engine.scheduler.tier.counts.fetched
        reply = engine.ask(PROMPT, 16, session="mine", calls=[SEARCH])
        assert engine.scheduler.tier.counts.fetched - before > 10
    assert reply.cached == 20 * BLOCK
    if is_wrong:
        assert find_distance(reply, expected) > 2 * tolerance
    else:
        assert_near([(reply, expected)], tolerance)
