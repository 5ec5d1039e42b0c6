"""Juniors beside a running request, with nothing pinned: where contexts are lost as a whole they leave it room."""

from __future__ import annotations

import pytest
from grouped_scheduler import FAMILIES, FULL, make_lone
from lone_scheduler import BLOCK_SIZE, LoneScheduler
from steered_scheduler import run_until_idle, tokens_of
from vllm.v1.kv_cache_interface import KVCacheSpec

# Of seventy blocks the running request has 31 or more, and less than as many are left beside what is asked for, though
# that has room in every group of layers.
BLOCKS, RUNNING, ASKED = 71, 30, 12
MIXED = ("gpt-oss", "llama-4", "qwen3-next")


def make_busy(model_path: str, family: str | None, policy: str = "agentcache", **tuning: float) -> LoneScheduler:
    """One request runs; None is a model of full attention alone. The reserve is no smaller than what runs."""
    specs: list[KVCacheSpec] = [FULL] if family is None else [FAMILIES[family][0], FULL]
    lone = make_lone(model_path, specs, BLOCKS, policy=policy, tuning={"reserve": 0.5, **tuning})
    lone.add("runs", tokens_of(1, RUNNING * BLOCK_SIZE), output_tokens=20, calls=())
    while lone.scheduler.requests["runs"].is_prefill_chunk or not lone.scheduler.running:
        lone.step()
    return lone


def ask(lone: LoneScheduler) -> None:
    lone.add("new", tokens_of(2, ASKED * BLOCK_SIZE), output_tokens=30, calls=())


def is_held_back(lone: LoneScheduler) -> bool:
    """Whether it is, in the step in which it comes: no time passes, so its patience is not over."""
    ask(lone)
    assert lone.scheduler.tracker.pins.blocks == 0
    held = "new" not in lone.step().scheduled
    lone.scheduler.check_integrity()
    return held


@pytest.mark.parametrize("policy", ["agentcache", "agentcache-interactive"])
@pytest.mark.parametrize("family", MIXED)
def test_with_windows_or_states_a_junior_leaves_room(tiny_model_path: str, family: str, policy: str) -> None:
    lone = make_busy(tiny_model_path, family, policy)
    assert is_held_back(lone)
    while "runs" in lone.scheduler.requests:
        assert "new" not in lone.step().scheduled
    assert "new" in lone.step().scheduled, "nothing runs beside it"
    run_until_idle(lone)


@pytest.mark.parametrize("policy", ["agentcache", "agentcache-interactive"])
def test_with_full_attention_alone_it_leaves_none(tiny_model_path: str, policy: str) -> None:
    lone = make_busy(tiny_model_path, None, policy)
    assert not is_held_back(lone)
    run_until_idle(lone)


@pytest.mark.parametrize("policy", ["vllm", "continuum-paper"])
@pytest.mark.parametrize("family", MIXED)
def test_other_policies_leave_none_whatever_the_layers(tiny_model_path: str, family: str, policy: str) -> None:
    lone = make_busy(tiny_model_path, family, policy)
    ask(lone)
    assert "new" in lone.step().scheduled
    run_until_idle(lone)


@pytest.mark.parametrize(("family", "running"), [(None, 1.0), *((family, 0.0) for family in MIXED)])
def test_the_knob_goes_before_what_the_layers_say(tiny_model_path: str, family: str | None, running: float) -> None:
    lone = make_busy(tiny_model_path, family, running=running)
    assert is_held_back(lone) is (running > 0)
    run_until_idle(lone)


@pytest.mark.parametrize("policy", ["agentcache", "agentcache-interactive"])
def test_states_leave_less_patience_than_windows(tiny_model_path: str, policy: str) -> None:
    """The same cache takes as long to compute whatever its layers are taken to be."""
    full, window, state = (
        make_busy(tiny_model_path, family, policy).scheduler.tracker.waiting.patience_s
        for family in (None, "gpt-oss", "qwen3-next")
    )
    assert 0 < window < full
    assert state == pytest.approx(0.8 * window)
