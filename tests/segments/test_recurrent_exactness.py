"""Recurrent layers (Qwen3-Next): replies that go on from a state of the turn before are those of a cold engine."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest
from family_models import make_model
from live_engine import LiveEngine, Reply, make_prompt

from tool_runtime.agent.job import ToolCall

pytestmark = pytest.mark.engine

# As large as a state: where the CPU has AVX-512, vLLM would choose it; elsewhere a state is half as large.
BLOCK = 64
# What the jobs below leave is about twice as much.
BLOCKS = 48
OPTIONS: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "dtype": "bfloat16",
    "block_size": BLOCK,
    "max_model_len": 1024,
    # Small steps: states on the way are left behind in mid-prompt.
    "max_num_batched_tokens": 2 * BLOCK,
}
# Steps begin elsewhere than in a cold run, so bfloat16 rounds otherwise; a wrong state changes these by more than one.
ROUNDING = 0.1


class Pair(NamedTuple):
    engine: LiveEngine
    cold: LiveEngine


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    path = make_model("qwen3-next", tmp_path_factory.mktemp("qwen3-next"))
    cold = LiveEngine(path, scheduler=None, enable_prefix_caching=False, num_gpu_blocks_override=100, **OPTIONS)
    return Pair(LiveEngine(path, num_gpu_blocks_override=BLOCKS, **OPTIONS), cold)


def assert_close(reply: Reply, expected: Reply) -> None:
    """Tokens are the same, up to where two of them are as likely but for rounding."""
    for place, (token, logprob) in enumerate(zip(reply.tokens, reply.logprobs, strict=True)):
        assert logprob == pytest.approx(expected.logprobs[place], abs=ROUNDING)
        if token != expected.tokens[place]:
            return


def run_jobs(pair: Pair) -> int:
    """Run jobs that come back in any order. Return how many tokens they hit."""
    chance = random.Random(4)
    prompts = {job: make_prompt(0, 100) + make_prompt(job + 1, 150) for job in range(5)}
    cached = 0
    for _ in range(20):
        job = chance.choice(list(prompts))
        name = pair.engine.add(prompts[job], 8, session=f"job-{job}", calls=[ToolCall("search", "{}")])
        pair.engine.finish()
        reply, expected = pair.engine.reply(name), pair.cold.ask(prompts[job], 8)
        assert_close(reply, expected)
        cached += reply.cached
        prompts[job] = prompts[job] + expected.tokens + make_prompt(chance.randrange(10**6), 60)
    return cached


def test_replies_that_go_on_from_states_are_cold_ones(pair: Pair) -> None:
    pair.engine.use(policy="agentcache")
    cached = run_jobs(pair)
    assert pair.engine.scheduler.checkpoints is not None
    assert sum(cause.blocks for cause in pair.engine.scheduler.block_queue.evictions.values())
    pair.engine.use(policy="vllm")
    # More, because states of the way to a turn's end go first.
    assert cached > run_jobs(pair)


def test_a_wrong_state_is_seen(pair: Pair) -> None:
    prompt, other = make_prompt(1, 5 * BLOCK + 9), make_prompt(2, 5 * BLOCK + 9)
    expected = pair.cold.ask(prompt, 8)
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
                assert_close(reply, expected)
        else:
            assert_close(reply, expected)
