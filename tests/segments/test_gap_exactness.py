"""Replies with gaps filled equal those of an engine that computes every prompt, on the real engine in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from live_engine import BLOCK, LiveEngine, assert_same, make_prompt
from sizes import IS_THOROUGH

pytestmark = pytest.mark.engine

ENGINES: dict[str, dict[str, Any]] = {
    "all at once": {},
    "steps shorter than a gap": {"max_num_batched_tokens": 2 * BLOCK},
    "one seat": {"max_num_seqs": 1},
}
if IS_THOROUGH:
    ENGINES["by priority"] = {"scheduling_policy": "priority"}
# 20 full blocks and a tail.
PROMPT = make_prompt(seed=1, tokens=20 * BLOCK + 7)


@pytest.fixture(scope="module", params=ENGINES)
def shared_engine(request: pytest.FixtureRequest, take_engine: Callable[..., LiveEngine]) -> LiveEngine:
    return take_engine(**ENGINES[request.param])


@pytest.fixture
def engine(shared_engine: LiveEngine) -> LiveEngine:
    assert shared_engine.reset()
    return shared_engine


@pytest.mark.parametrize(
    "gap",
    [[0], [5], [19], [3, 4, 5, 6, 7], [0, 1, 2, 6, 11, 12, 18], list(range(0, 20, 3))],
    ids=["first", "middle", "last", "one long", "several", "many"],
)
def test_reply_behind_gaps_equals_a_cold_one(engine: LiveEngine, cold: LiveEngine, gap: list[int]) -> None:
    expected = cold.ask(PROMPT)
    assert_same(engine.ask(PROMPT), expected)
    engine.forget(PROMPT, gap)
    before = engine.fill_tokens
    reply = engine.ask(PROMPT)
    assert_same(reply, expected)
    # The last block has no island behind it.
    filled = [index for index in gap if index < 19]
    assert engine.fill_tokens - before == len(filled) * BLOCK
    assert reply.cached == (20 - len(gap)) * BLOCK


def test_a_wrong_block_in_the_gap_shows_in_the_reply(engine: LiveEngine, cold: LiveEngine) -> None:
    expected = cold.ask(PROMPT)
    for gap in (0, 5, 18):
        assert engine.reset()
        engine.ask(PROMPT)
        engine.replace_block(PROMPT, gap, 10)
        assert engine.ask(PROMPT).tokens != expected.tokens


def test_two_requests_with_the_same_gaps_at_once(engine: LiveEngine, cold: LiveEngine) -> None:
    prompts = [PROMPT, PROMPT[: 15 * BLOCK + 3] + make_prompt(seed=2, tokens=100)]
    expected = [cold.ask(prompt) for prompt in prompts]
    for prompt in prompts:
        engine.ask(prompt)
    engine.forget(PROMPT, [2, 3, 4, 9])
    before = engine.fill_tokens
    names = [engine.add(prompt) for prompt in prompts]
    engine.finish()
    for name, cold_reply in zip(names, expected, strict=True):
        assert_same(engine.reply(name), cold_reply)
    assert engine.fill_tokens - before == 4 * BLOCK, "what one has filled the other hits"


def test_salts_share_nothing_and_fill_their_own_gaps(engine: LiveEngine, cold: LiveEngine) -> None:
    expected = cold.ask(PROMPT)
    for salt in ("x", "y"):
        assert engine.ask(PROMPT, salt=salt).cached == 0
        engine.forget(PROMPT, [2, 3, 9], salt=salt)
    before = engine.fill_tokens
    names = [engine.add(PROMPT, salt=salt) for salt in ("x", "y")]
    engine.finish()
    assert engine.fill_tokens - before == 2 * 3 * BLOCK
    for reply in map(engine.reply, names):
        assert_same(reply, expected)
        assert reply.cached == 17 * BLOCK
    assert engine.ask(PROMPT, salt="z").cached == 0
    assert engine.ask(PROMPT).cached == 0


def test_running_requests_keep_their_replies_during_fills(engine: LiveEngine, cold: LiveEngine) -> None:
    others = [make_prompt(seed, tokens=70) for seed in range(10, 13)]
    expected = [cold.ask(prompt, 40) for prompt in (*others, PROMPT)]
    engine.ask(PROMPT)
    engine.forget(PROMPT, [1, 2, 3, 9])
    before = engine.fill_tokens
    names = [engine.add(prompt, 40) for prompt in others]
    for _ in range(5):
        engine.step()
    names.append(engine.add(PROMPT, 40))
    engine.finish()
    for name, cold_reply in zip(names, expected, strict=True):
        assert_same(engine.reply(name), cold_reply)
    assert engine.fill_tokens - before == 4 * BLOCK
