"""The simulator and the real CPU engine, asked the same, find the same in the cache and lose the same from it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from eviction_log import EvictionLog
from live_engine import LiveEngine, make_prompt
from made_simulation import make_engine
from vllm.v1.core.kv_cache_utils import ExternalBlockHash

pytestmark = pytest.mark.engine

BLOCK_SIZE = 32
CACHE_TOKENS = 1024
TURNS = 4
REPLY_TOKENS = 16
# No two runs take the same time, so it must not decide: with so long a lifespan cost does, and between equals the age.
TIMELESS = {"gpu": "cpu", "lifespan_s": 1e6, "tuning": {"lambda_limit": 1.0}}


class Served(NamedTuple):
    """One request: the token ids of its prompt and its reply, and how many of the prompt's were cached."""

    prompt: list[int]
    reply: list[int]
    cached_tokens: int


@pytest.fixture(scope="module")
def real(tiny_model_path: str) -> LiveEngine:
    return LiveEngine(
        tiny_model_path, num_gpu_blocks_override=CACHE_TOKENS // BLOCK_SIZE + 1, max_model_len=CACHE_TOKENS
    )


def converse(engine: LiveEngine) -> list[Served]:
    """Three chats in turn, one request at a time. Their replies are rewritten in the next prompt."""
    chats = [make_prompt(chat, 160 * (chat + 1)) for chat in range(3)]
    served = []
    for turn in range(TURNS):
        for chat, prompt in enumerate(chats):
            reply = engine.ask(prompt, REPLY_TOKENS)
            served.append(Served(prompt, reply.tokens, reply.cached))
            chats[chat] = prompt + make_prompt(100 * (turn + 1) + chat, 45)
    return served


def simulate(
    model_path: str, served: list[Served], policy: str, knobs: dict[str, Any]
) -> tuple[list[int | None], list[ExternalBlockHash]]:
    """The cached tokens of the same requests, and the evicted blocks."""
    engine = make_engine(model_path, policy, cache_tokens=CACHE_TOKENS, block_size=BLOCK_SIZE, knobs=knobs)
    log = EvictionLog(engine.scheduler)
    cached = []
    for number, (prompt, reply, _) in enumerate(served):
        engine.add(str(number), prompt, reply)
        while not engine.idle:
            engine.clock.advance_to(engine.begin_step())
            cached += [times.cached_tokens for times in engine.end_step().finished]
    return cached, log.evicted


@pytest.mark.parametrize(("policy", "knobs"), [("lru", {}), ("asymcache", TIMELESS)], ids=["lru", "asymcache"])
def test_hits_and_evictions_are_those_of_the_real_engine(
    policy: str, knobs: dict[str, Any], real: LiveEngine, tiny_model_path: str
) -> None:
    real.use(policy, **{"tuning": {}, **knobs})
    log = EvictionLog(real.scheduler)
    served = converse(real)
    cached, evicted = simulate(tiny_model_path, served, policy, knobs)
    assert cached == [request.cached_tokens for request in served]
    assert evicted == log.evicted
    # The cache is too small for all, and large enough for some: else nothing was compared.
    later = cached[3:]
    assert len(later) == 9
    assert len(set(later)) > 2
    assert len(evicted) > CACHE_TOKENS // BLOCK_SIZE
