from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lone_scheduler import LoneScheduler, make_config, make_scheduler

from agentcache.engine.chunking import prefill_budget
from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.tuning import Tuning

TUNING = Tuning(chunking_threshold=16, chunking_floor=512)


@pytest.mark.parametrize(
    ("decodes", "budget"), [(0, 8192), (16, 8176), (17, 7710), (32, 4096), (64, 2048), (256, 512), (1000, 512)]
)
def test_budget_falls_as_decodes_exceed_the_threshold(decodes: int, budget: int) -> None:
    assert prefill_budget(TUNING, decodes, 8192) == budget


@given(st.integers(1, 64), st.integers(1, 4096), st.integers(0, 2048), st.integers(2048, 16384))
def test_budget_fits_the_step_and_falls_with_decodes_to_a_floor(
    threshold: int, floor: int, decodes: int, step_tokens: int
) -> None:
    tuning = Tuning(chunking_threshold=threshold, chunking_floor=floor)
    budget = prefill_budget(tuning, decodes, step_tokens)
    assert decodes + budget <= step_tokens
    assert budget >= min(floor, step_tokens - decodes)
    assert prefill_budget(tuning, decodes + 1, step_tokens) <= budget


def schedule_prefill_beside_decodes(model_path: str, **knobs: object) -> list[int]:
    """Prompt tokens of each step for a long prompt that comes while four requests decode."""
    config = make_config(model_path, SCHEDULER_CLASS, policy="asymcache", **knobs)
    lone = LoneScheduler(make_scheduler(config, 120))
    for number in range(4):
        lone.add(f"decode {number}", [number] * 10, output_tokens=60)
    lone.step()
    lone.add("prompt", list(range(400)), output_tokens=1)
    steps = [lone.step() for _ in range(12)]
    return [step.scheduled["prompt"][0] for step in steps if "prompt" in step.scheduled]


def test_scheduler_shrinks_the_prefill_and_off_is_stock(tiny_model_path: str) -> None:
    def schedule(threshold: int, floor: int = 1024, *, enabled: bool = True) -> list[int]:
        tuning = {"chunking_threshold": threshold, "chunking_floor": floor}
        return schedule_prefill_beside_decodes(tiny_model_path, chunking={"enabled": enabled}, tuning=tuning)[:4]

    assert schedule(1, enabled=False) == [92, 92, 92, 92]
    assert schedule(4) == [92, 92, 92, 92]
    # 96 · 2 / 4 beside the decodes; the floor counts where that is less.
    assert schedule(2, 8) == [48, 48, 48, 48]
    assert schedule(1, 40) == [40, 40, 40, 40]
