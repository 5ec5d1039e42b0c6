"""Where gaps cannot be, or are not wanted, cached prefixes are all that is reused, and replies are right."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from family_models import make_model
from live_engine import BLOCK, ColdEngine, LiveEngine, assert_same, make_prompt

pytestmark = pytest.mark.engine

TakeEngine = Callable[..., LiveEngine]
PROMPT = make_prompt(seed=1, tokens=10 * BLOCK + 7)


def test_a_model_with_windows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_model("mistral", tmp_path)
    cold = ColdEngine(path, skip_tokenizer_init=True)
    said: list[str] = []
    monkeypatch.setattr(logging.getLogger("vllm.agentcache"), "handle", lambda record: said.append(record.getMessage()))
    engine = LiveEngine(path, skip_tokenizer_init=True)
    # An engine outside of a server is told, besides, that it reads no tool calls.
    assert said.count("Cached blocks are reused as prefixes only: no layer of the model keeps all tokens.") == 1
    assert engine.scheduler.gap_filler is None
    expected = cold.ask(PROMPT)
    assert_same(engine.ask(PROMPT), expected)
    # In the last window: what is before it is not kept.
    engine.forget(PROMPT, [8])
    assert_same(engine.ask(PROMPT), expected)


def test_prompt_logprobs_compute_the_whole_prompt(take_engine: TakeEngine, cold: LiveEngine) -> None:
    engine = take_engine()
    engine.ask(PROMPT)
    engine.forget(PROMPT, [4])
    reply = engine.ask(PROMPT, prompt_logprobs=1)
    assert_same(reply, cold.ask(PROMPT, prompt_logprobs=1))
    assert reply.cached == 0
    assert engine.fill_tokens == 0
    assert engine.scheduler.gap_filler.stats.fallbacks == {"cache not read": 1}


@pytest.mark.parametrize(
    "options",
    [{"segments": {"enabled": False}}, {"policy": "lru"}, {"policy": "vllm"}],
    ids=["switched off", "lru", "vllm"],
)
def test_segments_are_off(take_engine: TakeEngine, cold: LiveEngine, options: dict[str, Any]) -> None:
    engine = take_engine(**options)
    engine.ask(PROMPT)
    engine.forget(PROMPT, [4])
    reply = engine.ask(PROMPT)
    assert_same(reply, cold.ask(PROMPT))
    assert reply.cached == 4 * BLOCK
    assert engine.scheduler.gap_filler is None


def test_segments_can_be_switched_on_for_another_policy(take_engine: TakeEngine, cold: LiveEngine) -> None:
    engine = take_engine(policy="lru", segments={"enabled": True})
    engine.ask(PROMPT)
    engine.forget(PROMPT, [4])
    reply = engine.ask(PROMPT)
    assert_same(reply, cold.ask(PROMPT))
    assert reply.cached == 9 * BLOCK


def test_islands_that_save_less_than_a_row_takes_are_not_kept(take_engine: TakeEngine, cold: LiveEngine) -> None:
    engine = take_engine(tuning={"row_s": 3600.0})
    engine.ask(PROMPT)
    engine.forget(PROMPT, [4])
    reply = engine.ask(PROMPT)
    assert_same(reply, cold.ask(PROMPT))
    assert reply.cached == 4 * BLOCK
    assert engine.fill_tokens == 0
