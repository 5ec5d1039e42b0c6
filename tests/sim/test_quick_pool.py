"""The quick block pool against vLLM's own: two schedulers with the same requests do the same, block by block."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hand_clock import Clock
from hypothesis import given, settings
from hypothesis import strategies as st
from lone_scheduler import BLOCK_SIZE, LoneScheduler, make_config, make_scheduler
from sizes import pick_size

from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.sim.quick_pool import quicken
from tool_runtime.agent.job import ToolCall

SEARCH = ToolCall("search", "{}")


def make_lone(model_path: str, policy: str, blocks: int, in_flight: int, clock: Clock) -> LoneScheduler:
    config = make_config(model_path, SCHEDULER_CLASS, is_async=in_flight == 2, policy=policy)
    return LoneScheduler(make_scheduler(config, blocks, clock=clock), in_flight)


def view_cache(lone: LoneScheduler) -> Any:
    """Which blocks have which key, in vLLM's order, and what the blocks say of themselves."""
    held = {
        key: list(found) if isinstance(found, dict) else [found.block_id]
        for key, found in lone.pool.cached_block_hash_to_block._cache.items()
    }
    return held, [(block.ref_cnt, block.block_hash, block.block_hash_num_tokens) for block in lone.pool.blocks]


class Pair:
    """`random` decides what happens to both."""

    def __init__(self, plain: LoneScheduler, quick: LoneScheduler, clock: Clock, chance: random.Random) -> None:
        self.both = plain, quick
        self.clock = clock
        self.chance = chance
        self.number = 0
        self.running: list[str] = []

    def add(self) -> None:
        """Beginnings are often the same; some sessions come back."""
        chance = self.chance
        pieces = [chance.randrange(2) for _ in range(chance.randint(1, 8))]
        prompt = [token for piece in pieces for token in [piece] * chance.choice((BLOCK_SIZE, 2 * BLOCK_SIZE))]
        prompt += [7] * chance.randrange(1, BLOCK_SIZE)
        session = f"s{chance.randrange(4)}" if chance.random() < 0.7 else None
        name, reply = f"r{self.number}", chance.randint(1, 3 * BLOCK_SIZE)
        self.number += 1
        self.running.append(name)
        for lone in self.both:
            lone.add(name, list(prompt), reply, [SEARCH], session_id=session)

    def act(self) -> None:
        draw = self.chance.random()
        if draw < 0.25:
            self.add()
        elif draw < 0.28 and self.running:
            name = self.running.pop(self.chance.randrange(len(self.running)))
            for lone in self.both:
                lone.abort(name)
        elif draw < 0.29:
            assert len({lone.scheduler.reset_prefix_cache() for lone in self.both}) == 1
        else:
            self.clock.now_s += self.chance.choice((0.01, 0.01, 3.0))
            plain, quick = (lone.step() for lone in self.both)
            assert quick == plain
            self.running = [name for name in self.running if name not in plain.finished]
        plain, quick = map(view_cache, self.both)
        assert quick == plain


@pytest.mark.parametrize("policy", ["vllm", "lru", "continuum-code", "agentcache"])
@given(seed=st.integers(0, 1_000_000), blocks=st.integers(34, 120), in_flight=st.sampled_from([1, 2]))
@settings(max_examples=pick_size(3, 12))
def test_all_blocks_are_where_vllm_has_them(
    tiny_model_path: str, policy: str, seed: int, blocks: int, in_flight: int
) -> None:
    clock = Clock()
    plain, quick = (make_lone(tiny_model_path, policy, blocks, in_flight, clock) for _ in range(2))
    assert quicken(quick.scheduler) is not None
    pair = Pair(plain, quick, clock, random.Random(seed))
    for _ in range(200):
        pair.act()
    assert pair.number > 10


def test_blocks_that_are_hashed_in_parts_are_left_to_vllm(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, "vllm", 40, 1, Clock())
    lone.scheduler.hash_block_size = BLOCK_SIZE // 2
    before = dict(vars(lone.pool)), dict(vars(lone.scheduler.kv_cache_manager))
    assert quicken(lone.scheduler) is None
    assert (vars(lone.pool), vars(lone.scheduler.kv_cache_manager)) == before
