"""Sleep mode: what vLLM's engine core does with our scheduler when its cache is given away, and when it comes back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from unittest.mock import MagicMock

import pytest
from gapped_scheduler import PROMPT, cache_prompt
from gapped_scheduler import make_lone as make_filling
from gapped_scheduler import run_until_idle as run_filling
from handing_connector import CONNECTOR, HandingConnector
from lone_scheduler import BLOCK_SIZE, Step
from steered_scheduler import SEARCH, do_turn_in_no_time, make_lone, run_until_idle, tokens_of
from tiered_scheduler import TieredScheduler, make_tiered
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import RequestStatus
from vllm_internals import finish_pause

from agentcache.engine.rpc.job_views import count_runtime, view_jobs
from agentcache.engine.scheduler import AgentScheduler


def make_core(scheduler: AgentScheduler) -> Any:
    """vLLM's own, in this process, without an executor: that of the CPU ignores sleep."""
    core = object.__new__(EngineCore)
    core.scheduler = scheduler
    core.model_executor = MagicMock(is_sleeping=False)
    core.mm_receiver_cache = None
    return core


def count_hits(steps: Iterable[Step]) -> int:
    return sum(sum(step.hit_tokens.values()) for step in steps)


@pytest.mark.parametrize("level", [1, 2])
def test_nothing_cached_or_pinned_outlasts_a_sleep(tiny_model_path: str, level: int) -> None:
    lone = make_lone(tiny_model_path, "agentcache", gpu="h200")
    core, tracker = make_core(lone.scheduler), lone.scheduler.tracker
    prompts = {name: tokens_of(seed, 100) for seed, name in enumerate("ab")}
    for name, prompt in prompts.items():
        do_turn_in_no_time(lone, f"{name} 1", prompt, calls=(SEARCH,), session_id=name)
    assert len(tracker.pins) == 2
    core.sleep(level)
    core.model_executor.sleep.assert_called_once_with(level)
    lone.scheduler.check_integrity()
    assert (
        len(tracker.pins),
        count_runtime(tracker).pins.ended["reset"],
    ) == (0, 2)
    assert not any(block.block_hash for block in lone.pool.blocks)
    for name, prompt in prompts.items():
        lone.add(f"{name} 2", [*prompt, 5], output_tokens=3, calls=(), session_id=name)
    assert not lone.step().scheduled, "those that come while it sleeps wait"
    assert core.wake_up()
    assert count_hits(run_until_idle(lone)) == 0
    assert {view.turn_count for view in view_jobs(tracker)} == {2}
    lone.add("a 3", [*prompts["a"], 5], output_tokens=3, calls=(), session_id="a")
    assert count_hits(run_until_idle(lone)) > 0, "it caches as before"


def test_a_light_sleep_keeps_cache_and_pins(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, "agentcache", gpu="h200")
    core = make_core(lone.scheduler)
    do_turn_in_no_time(lone, "a 1", tokens_of(1, 100), calls=(SEARCH,), session_id="a")
    core.sleep(0)
    core.wake_up(["scheduling"])
    assert len(lone.scheduler.tracker.pins) == 1
    lone.add("a 2", [*tokens_of(1, 100), 5], output_tokens=3, calls=(), session_id="a")
    assert count_hits(run_until_idle(lone)) > 0


@pytest.mark.parametrize("mode", ["abort", "keep"])
def test_a_sleep_in_the_middle_of_a_gap(tiny_model_path: str, mode: str) -> None:
    """The fill request goes; what it was for is aborted, or computes everything afterwards."""
    lone = make_filling(tiny_model_path)
    core = make_core(lone.scheduler)
    cache_prompt(lone, *range(1, 12))
    lone.add("job", PROMPT, output_tokens=2)
    lone.step()
    assert lone.scheduler.gap_filler.rows
    core.sleep(1, mode)
    lone.scheduler.check_integrity()
    assert not lone.scheduler.gap_filler.rows
    assert not lone.scheduler.gap_filler.holds.count_held()
    core.wake_up()
    steps = run_filling(lone)
    finished = [len(step.finished["job"]) for step in steps if "job" in step.finished]
    assert finished == ([] if mode == "abort" else [len(PROMPT) + 2])
    cache_prompt(lone, 4)
    lone.add("again", PROMPT, output_tokens=1)
    assert count_hits(run_filling(lone)) == 17 * BLOCK_SIZE, "gaps are filled again"


def fill_tier(model_path: str) -> TieredScheduler:
    """Four jobs have run, more than the GPU holds: the CPU cache has blocks."""
    lone = make_tiered(model_path)
    for seed in range(4):
        lone.add(f"job {seed}", tokens_of(seed, 200), output_tokens=2)
        lone.run_until_idle()
    return lone


def test_the_host_s_memory_is_empty_after_a_sleep(tiny_model_path: str) -> None:
    lone = fill_tier(tiny_model_path)
    core = make_core(lone.scheduler)
    assert lone.scheduler.tier.host.used_blocks
    core.sleep(1)
    lone.scheduler.check_integrity()
    assert not lone.scheduler.tier.host.used_blocks
    core.wake_up()
    lone.add("again", tokens_of(0, 200), output_tokens=2)
    steps = [lone.step() for _ in range(12)]
    assert count_hits(steps) == 0
    assert any("again" in step.finished for step in steps)


def test_a_sleep_waits_for_blocks_on_their_way(tiny_model_path: str) -> None:
    """vLLM's engine process finishes a pause once its scheduler has nothing left: until then blocks are written."""
    lone = fill_tier(tiny_model_path)
    core = make_core(lone.scheduler)
    lone.pace = 0.0
    lone.add("again", tokens_of(0, 200), output_tokens=2)
    lone.step()
    assert lone.scheduler.tier.is_fetching
    lone.scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
    lone.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    lone.step()
    assert lone.scheduler.has_requests(), "the copy is not made"
    lone.pace = 1.0
    while lone.scheduler.has_requests():
        lone.step()
    finish_pause(core)
    lone.scheduler.check_integrity()
    assert not lone.scheduler.tier.host.used_blocks


def test_pins_end_though_a_connector_cannot_forget_now(tiny_model_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As vLLM's own cannot while it copies. The GPU's cache is empty by then."""
    monkeypatch.setattr(HandingConnector, "reset_cache", lambda _: False)
    lone = make_lone(tiny_model_path, "agentcache", gpu="h200", engine={"kv_transfer_config": CONNECTOR})
    core = make_core(lone.scheduler)
    do_turn_in_no_time(lone, "a 1", tokens_of(1, 100), calls=(SEARCH,), session_id="a")
    assert len(lone.scheduler.tracker.pins) == 1
    with pytest.raises(RuntimeError, match="KV connector cache"):
        core.sleep(1)
    assert not any(block.block_hash for block in lone.pool.blocks)
    lone.scheduler.check_integrity()
    assert (
        len(lone.scheduler.tracker.pins),
        count_runtime(lone.scheduler.tracker).pins.ended["reset"],
    ) == (0, 1)
