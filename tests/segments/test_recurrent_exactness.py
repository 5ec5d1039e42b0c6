"""Recurrent layers: replies that go on from a state of the turn before are those of a cold engine."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from family_models import make_model
from live_engine import ColdEngine, LiveEngine, Reply, assert_same, make_prompt
from sizes import IS_THOROUGH, pick_size

from tool_runtime.agent.job import ToolCall

pytestmark = pytest.mark.engine

# As large as a state: where the CPU has AVX-512, vLLM would choose it; elsewhere a state is half as large.
BLOCK = 64
OPTIONS: dict[str, Any] = {"skip_tokenizer_init": True, "block_size": BLOCK, "max_model_len": 1024}
# Steps begin elsewhere than in a cold run, so bfloat16 rounds otherwise; a wrong state changes these by more than one.
ROUNDING = 0.1


class Family(NamedTuple):
    name: str
    blocks: int
    """Of the cache: what the jobs below leave is about twice as much."""
    dtype: str
    step_tokens: int
    """Small steps: states on the way are left behind in mid-prompt."""


# vLLM's CPU kernels for Mamba-2 keep a state at the end of a step alone, and vLLM asks for one within any longer step.
FAMILIES = (
    Family("qwen3-next", 48, "bfloat16", 2 * BLOCK),
    Family("nemotron-h", 36, "float32", BLOCK),
    Family("mamba2", 12, "float32", BLOCK),
)
# Its states and attention are as nemotron-h's.
LIKE_OTHERS = (Family("granite-4", 48, "float32", BLOCK),) if IS_THOROUGH else ()


@dataclass
class Pair:
    engine: LiveEngine
    cold: ColdEngine

    def expect(self, prompt: list[int]) -> Reply:
        return self.cold.ask(prompt, 8)

    def check(self, reply: Reply, prompt: list[int]) -> None:
        """Compare with the cold engine, up to where two tokens are as likely but for bfloat16's rounding."""
        expected = self.expect(prompt)
        if self.cold.vllm_config.model_config.dtype == torch.float32:
            assert_same(reply, expected)
            return
        for place, (token, logprob) in enumerate(zip(reply.tokens, reply.logprobs, strict=True)):
            assert logprob == pytest.approx(expected.logprobs[place], abs=ROUNDING)
            if token != expected.tokens[place]:
                return


@pytest.fixture(scope="module", params=FAMILIES + LIKE_OTHERS, ids=lambda family: family.name)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    name, blocks, dtype, step_tokens = request.param
    path = make_model(name, tmp_path_factory.mktemp(name))
    options = OPTIONS | {"dtype": dtype, "max_num_batched_tokens": step_tokens}
    cold = ColdEngine(path, num_gpu_blocks_override=100, **options)
    # Where no layer has attention, vLLM caches on request only.
    return Pair(LiveEngine(path, num_gpu_blocks_override=blocks, enable_prefix_caching=True, **options), cold)


def run_jobs(pair: Pair) -> int:
    """Run jobs that come back in any order, two at a time. Return how many tokens they hit."""
    chance = random.Random(4)
    prompts = {job: make_prompt(0, 100) + make_prompt(job + 1, 150) for job in range(5)}
    cached = 0
    for _ in range(pick_size(7, 10)):
        calls = [ToolCall("search", "{}")]
        jobs = chance.sample(list(prompts), 2)
        names = {job: pair.engine.add(prompts[job], 8, session=f"job-{job}", calls=calls) for job in jobs}
        pair.engine.finish()
        for job, name in names.items():
            reply = pair.engine.reply(name)
            pair.check(reply, prompts[job])
            cached += reply.cached
            prompts[job] = prompts[job] + pair.expect(prompts[job]).tokens + make_prompt(chance.randrange(10**6), 60)
    return cached


def test_replies_that_go_on_from_states_are_cold_ones(pair: Pair) -> None:
    pair.engine.use(policy="agentcache")
    cached = run_jobs(pair)
    has_costs = pair.engine.scheduler.checkpoints is not None
    assert sum(cause.blocks for cause in pair.engine.scheduler.block_queue.evictions.values())
    pair.engine.use(policy="vllm")
    stock = run_jobs(pair)
    # More, because states of the way to a turn's end go first; where no layer has attention, nothing is told apart.
    assert cached > stock if has_costs else cached == stock > 0


def test_a_wrong_state_is_seen(pair: Pair) -> None:
    prompt, other = make_prompt(1, 5 * BLOCK + 9), make_prompt(2, 5 * BLOCK + 9)
    for wrong in (False, True):
        pair.engine.use(policy="agentcache")
        for each in (prompt, other):
            pair.engine.ask(each, 8)
        if wrong:
            cache = pair.engine.pool.cached_block_hash_to_block
            own, others = (pair.engine.block_keys(each, group=0)[4] for each in (prompt, other))
            state = cache.get_one_block(others)
            pair.engine.forget(prompt, [4], group=0)
            cache.insert(own, state)
        reply = pair.engine.ask(prompt, 8)
        assert reply.cached == 5 * BLOCK
        if wrong:
            with pytest.raises(AssertionError):
                pair.check(reply, prompt)
        else:
            pair.check(reply, prompt)
