"""Families whose layers do not all keep all tokens: replies behind gaps equal those of an engine that computes all."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from crowd import WindowedCrowd, assert_equal_to_cold
from family_models import make_model
from live_engine import BLOCK, ColdEngine, LiveEngine, assert_same, make_prompt
from sizes import pick_size

pytestmark = pytest.mark.engine

# Of the cache, by family: about a third of what the jobs below leave in it.
BLOCKS = {"gpt-oss": 60, "gemma": 110, "llama-4": 64}
# Small steps, so that windows are left behind in mid-prompt.
OPTIONS: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "max_model_len": 26 * BLOCK,
    "max_num_batched_tokens": 4 * BLOCK,
}
# 18 full blocks and a tail.
PROMPT = make_prompt(seed=1, tokens=18 * BLOCK + 7)


class Pair(NamedTuple):
    engine: LiveEngine
    cold: LiveEngine
    full: int
    """The first group of layers that keep all tokens."""
    part: int
    """The first of those that do not."""


@pytest.fixture(scope="module", params=BLOCKS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    path = make_model(request.param, tmp_path_factory.mktemp(request.param))
    cold = ColdEngine(path, num_gpu_blocks_override=200, **OPTIONS)
    engine = LiveEngine(path, num_gpu_blocks_override=BLOCKS[request.param], **OPTIONS)
    rule = engine.scheduler.gap_filler.finder.rule
    return Pair(engine, cold, rule.full[0], rule.parts[0][0])


@pytest.mark.parametrize("gap", [[0], [3, 4, 11], list(range(14)), [5]][: pick_size(3, 4)], ids=str)
def test_replies_behind_gaps_of_families(pair: Pair, gap: list[int]) -> None:
    engine, cold, full, _ = pair
    engine.use()
    expected = cold.ask(PROMPT, 16)
    assert_same(engine.ask(PROMPT, 16), expected)
    engine.forget(PROMPT, gap, group=full)
    reply = engine.ask(PROMPT, 16)
    assert_same(reply, expected)
    assert engine.fill_tokens >= len(gap) * BLOCK
    assert reply.cached >= (17 - max(gap)) * BLOCK


def test_a_wrong_block_of_either_kind_is_seen(pair: Pair) -> None:
    engine, cold, full, part = pair
    expected = cold.ask(PROMPT, 16)
    for group, index in ((full, 5), (part, 17)):
        engine.use()
        engine.ask(PROMPT, 16)
        cache = engine.pool.cached_block_hash_to_block
        wrong = cache.get_one_block(engine.block_keys(PROMPT, group=full)[9])
        engine.forget(PROMPT, [index], group=group)
        # As if it had been registered without having been computed.
        cache.insert(engine.block_keys(PROMPT, group=group)[index], wrong)
        with pytest.raises(AssertionError):
            assert_same(engine.ask(PROMPT, 16), expected)


@pytest.mark.parametrize(
    "policy", [{"policy": "agentcache", "look_s": 0.01}, {"policy": "asymcache"}][: pick_size(1, 2)], ids=str
)
def test_replies_of_jobs_of_families_equal_cold_ones(pair: Pair, policy: dict[str, Any]) -> None:
    engine, cold, *_ = pair
    engine.use(**policy)
    crowd = WindowedCrowd(engine, random.Random(6))
    crowd.run(jobs=6, turns=4)
    assert_equal_to_cold(crowd, cold)
    stats = engine.scheduler.gap_filler.stats
    assert sum(stats.requests.values()) >= 2, stats
    assert crowd.resets
    assert not engine.scheduler.gap_filler.rows
    assert engine.pool.get_num_free_blocks() == engine.pool.num_gpu_blocks - 1


def test_layers_that_vllm_does_not_tell_apart(tmp_path: Path) -> None:
    """Those with a window keep all tokens then: each block's end is a place to go on from."""
    path = make_model("gpt-oss", tmp_path)
    cold = ColdEngine(path, num_gpu_blocks_override=200, **OPTIONS)
    engine = LiveEngine(path, num_gpu_blocks_override=60, disable_hybrid_kv_cache_manager=True, **OPTIONS)
    assert len(engine.scheduler.kv_cache_config.kv_cache_groups) == 1
    assert engine.scheduler.checkpoints is None
    expected = cold.ask(PROMPT, 16)
    assert_same(engine.ask(PROMPT, 16), expected)
    engine.forget(PROMPT, [3, 4, 11])
    reply = engine.ask(PROMPT, 16)
    assert_same(reply, expected)
    assert (reply.cached, engine.fill_tokens) == (15 * BLOCK, 3 * BLOCK)
