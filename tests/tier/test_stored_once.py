"""The GPU may have several blocks of one hash; the CPU cache gets one copy of them."""

from __future__ import annotations

import random
from unittest import mock

import pytest
from lone_scheduler import BLOCK_SIZE
from sizes import pick_size
from tiered_jobs import ask, make_tokens
from tiered_scheduler import TieredScheduler, make_tiered
from vllm.v1.core.kv_cache_utils import KVCacheBlock

# vLLM computes the last block of such a prompt again, whoever has it already.
BLOCKS = 9
PROMPT = make_tokens(0, BLOCKS * BLOCK_SIZE)


def make_alike(model_path: str, most: int) -> TieredScheduler:
    """Two requests have left the last block of PROMPT; nothing is copied, and a step copies up to `most` victims."""
    lone = make_tiered(model_path)
    storing = lone.scheduler.tier.storing
    with mock.patch.object(storing.usefulness, "is_useful", return_value=False):
        ask(lone, "one/0", PROMPT, tokens=1)
        ask(lone, "two/0", PROMPT, tokens=1)
        lone.run_until_idle()
    keys = [block.block_hash for block in lone.pool.blocks if block.block_hash is not None]
    assert (len(keys), len(set(keys))) == (BLOCKS + 1, BLOCKS)
    lone.store_ahead(most=most)
    return lone


def list_copied(lone: TieredScheduler) -> list[KVCacheBlock]:
    return [block for store in lone.scheduler.tier.copies.stores.values() for block in store.blocks]


@pytest.mark.parametrize("most", [1, 3, 100])
def test_blocks_of_one_hash_are_copied_once(most: int, tiny_model_path: str) -> None:
    """Both are victims, and the copies outlast the steps in which they are looked at."""
    lone = make_alike(tiny_model_path, most)
    lone.pace = 0.0
    ask(lone, "other/0", make_tokens(1, 5), tokens=20)
    for _ in range(BLOCKS + 3):
        lone.step()
    keys = [block.block_hash for block in list_copied(lone)]
    assert len(keys) == len(set(keys)) == BLOCKS
    lone.pace = 1.0
    lone.run_until_idle()
    assert lone.scheduler.tier.counts.stored == lone.scheduler.tier.host.used_blocks >= BLOCKS


def test_a_twin_is_copied_where_the_first_was_lost(tiny_model_path: str) -> None:
    lone = make_alike(tiny_model_path, 100)
    lone.pace = 0.0
    ask(lone, "other/0", make_tokens(1, 5), tokens=20)
    lone.step()
    copied = list_copied(lone)
    lost = next(block for block in copied if block.block_hash_num_tokens == len(PROMPT))
    key = lost.block_hash
    # Something else is written to it before it is copied.
    lone.pool.evict_blocks({lost.block_id})
    lone.pace = 1.0
    lone.run_until_idle()
    assert lone.scheduler.tier.counts.overwritten == 1
    assert lone.scheduler.tier.host.map.holds(key)


@pytest.mark.parametrize("seed", range(4))
def test_prompts_alike_at_once_are_copied_once(seed: int, tiny_model_path: str) -> None:
    """Every step looks whether a block is copied twice."""
    chance = random.Random(seed)
    lone = make_tiered(
        tiny_model_path, host_blocks=chance.choice([20, 200]), pace=chance.choice([0.05, 0.3]), seed=seed
    )
    lone.store_ahead(chance.choice([4, 20]), most=chance.choice([1, 4]))
    prompts = [make_tokens(number, chance.randint(1, 12) * BLOCK_SIZE) for number in range(3)]
    for number in range(pick_size(30, 100)):
        ask(lone, f"job-{number}/0", chance.choice(prompts), tokens=chance.randint(1, 8))
        for _ in range(chance.choice([0, 0, 1, 6])):
            lone.step()
    lone.run_until_idle()
    assert lone.scheduler.tier.counts.stored
