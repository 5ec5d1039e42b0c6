"""A KV cache in fp8: replies behind gaps, and of jobs on a small cache, equal those of a cold engine in fp8.

Stock vLLM's replies there are the same number for number however steps and batches are cut, so nothing is allowed for.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest
import torch
from crowd import BLOCKS, Crowd, assert_equal_to_cold, assert_eventful, note_preemptions
from live_engine import BLOCK, ColdEngine, LiveEngine, assert_same, make_prompt
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

from agentcache.front_end.token_bytes import count_layer_bytes
from agentcache.models.shapes import TINY

pytestmark = pytest.mark.engine

FP8: dict[str, Any] = {"kv_cache_dtype": "fp8"}
# 20 full blocks and a tail.
PROMPT = make_prompt(seed=1, tokens=20 * BLOCK + 7)


class Pair(NamedTuple):
    engine: LiveEngine
    cold: LiveEngine


@pytest.fixture(scope="module")
def pair(tiny_model_path: str) -> Pair:
    try:
        _get_attn_isa(torch.float32, BLOCK, TINY.fields["head_dim"], "fp8")
    except NotImplementedError as reason:
        pytest.skip(str(reason))
    cold = ColdEngine(tiny_model_path, **FP8)
    return Pair(LiveEngine(tiny_model_path, num_gpu_blocks_override=BLOCKS, **FP8), cold)


def test_the_cache_holds_a_byte_a_number(pair: Pair) -> None:
    """Both engines' caches, and what is said of a size of the CPU cache."""
    numbers = 2 * TINY.fields["num_key_value_heads"] * TINY.fields["head_dim"]
    for engine in pair:
        (group,) = engine.scheduler.kv_cache_config.kv_cache_groups
        assert group.kv_cache_spec.page_size_bytes == BLOCK * numbers
        assert count_layer_bytes(engine.vllm_config, TINY.fields["num_key_value_heads"]) == numbers


@pytest.mark.parametrize("gap", [[0], [3, 4, 5], [2, 3, 9, 18]], ids=["first", "one long", "several"])
def test_replies_behind_gaps_in_fp8(pair: Pair, gap: list[int]) -> None:
    pair.engine.use()
    expected = pair.cold.ask(PROMPT, 16)
    assert_same(pair.engine.ask(PROMPT, 16), expected)
    pair.engine.forget(PROMPT, gap)
    reply = pair.engine.ask(PROMPT, 16)
    assert_same(reply, expected)
    assert pair.engine.fill_tokens == len(gap) * BLOCK
    assert reply.cached == (20 - len(gap)) * BLOCK


def test_a_wrong_block_in_fp8_is_seen(pair: Pair) -> None:
    pair.engine.use()
    expected = pair.cold.ask(PROMPT, 16)
    pair.engine.ask(PROMPT, 16)
    pair.engine.replace_block(PROMPT, 5, 10)
    with pytest.raises(AssertionError):
        assert_same(pair.engine.ask(PROMPT, 16), expected)


def test_replies_of_jobs_in_fp8_equal_cold_ones(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.engine.use(policy="agentcache", look_s=0.01)
    crowd = Crowd(pair.engine, random.Random(4))
    note_preemptions(pair.engine, crowd.preempted, monkeypatch)
    crowd.run(jobs=6, turns=4)
    assert_equal_to_cold(crowd, pair.cold)
    assert_eventful(crowd)
    assert not pair.engine.scheduler.gap_filler.rows
    assert pair.engine.pool.get_num_free_blocks() == BLOCKS - 1
