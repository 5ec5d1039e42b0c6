"""Families whose layers all keep the same, or with blocks of several sizes: replies are those of a cold engine."""

from __future__ import annotations

import random
from typing import Any

import pytest
from crowd import Crowd, assert_equal_to_cold
from family_models import make_model
from live_engine import BLOCK, ColdEngine, LiveEngine, assert_same, make_prompt
from sizes import IS_THOROUGH

pytestmark = pytest.mark.engine

# Of the cache, by family: less than what the jobs below leave in it.
BLOCKS = {"qwen3": 37, "qwen3-moe": 37, "glm4-moe": 37, "minimax-m2": 37, "mistral": 14, "gemma-4": 56}
# Experts, as glm4-moe has them, and layers as the llama's of the other tests.
LIKE_OTHERS = () if IS_THOROUGH else ("qwen3", "qwen3-moe", "minimax-m2")
OPTIONS: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "max_model_len": 26 * BLOCK,
    "max_num_batched_tokens": 4 * BLOCK,
}
PROMPT = make_prompt(seed=1, tokens=6 * BLOCK + 7)


@pytest.fixture(scope="module", params=[each for each in BLOCKS if each not in LIKE_OTHERS])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[LiveEngine, LiveEngine]:
    path = make_model(request.param, tmp_path_factory.mktemp(request.param))
    cold = ColdEngine(path, num_gpu_blocks_override=100, **OPTIONS)
    return LiveEngine(path, num_gpu_blocks_override=BLOCKS[request.param], **OPTIONS), cold


def test_replies_of_jobs_of_even_layers_equal_cold_ones(pair: tuple[LiveEngine, LiveEngine]) -> None:
    engine, cold = pair
    engine.use(policy="agentcache", look_s=0.01)
    crowd = Crowd(engine, random.Random(6))
    crowd.run(jobs=4, turns=3)
    assert_equal_to_cold(crowd, cold)
    assert sum(reply.cached for *_, reply in crowd.turns) > 0
    assert engine.scheduler.block_queue.evictions["capacity"].blocks > 0
    # Gaps are filled where all tokens are kept.
    assert engine.scheduler.gap_filler is None or engine.fill_tokens > 0
    assert engine.pool.get_num_free_blocks() == engine.pool.num_gpu_blocks - 1


def test_a_wrong_block_of_even_layers_is_seen(pair: tuple[LiveEngine, LiveEngine]) -> None:
    engine, cold = pair
    expected = cold.ask(PROMPT)
    engine.use(policy="agentcache")
    assert_same(engine.ask(PROMPT), expected)
    assert_same(engine.ask(PROMPT), expected)
    # The last group has the layer that keeps all tokens, if any does.
    group = len(engine.scheduler.kv_cache_config.kv_cache_groups) - 1
    engine.replace_block(PROMPT, 5, 4, group=group)
    with pytest.raises(AssertionError):
        assert_same(engine.ask(PROMPT), expected)
