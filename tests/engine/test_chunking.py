from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lone_scheduler import LoneScheduler, make_config, make_scheduler

from agentcache.config import ChunkingConfig
from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.order.chunking import prefill_budget

CONFIG = ChunkingConfig(threshold=16, floor=512)


@pytest.mark.parametrize(
    ("decodes", "budget"), [(0, 8192), (16, 8176), (17, 7710), (32, 4096), (64, 2048), (256, 512), (1000, 512)]
)
def test_budget_falls_as_decodes_exceed_the_threshold(decodes: int, budget: int) -> None:
    assert prefill_budget(CONFIG, decodes, 8192) == budget


@given(st.integers(1, 64), st.integers(1, 4096), st.integers(0, 2048), st.integers(2048, 16384))
def test_budget_fits_the_step_and_falls_with_decodes_to_a_floor(
    threshold: int, floor: int, decodes: int, step_tokens: int
) -> None:
    config = ChunkingConfig(threshold=threshold, floor=floor)
    budget = prefill_budget(config, decodes, step_tokens)
    assert decodes + budget <= step_tokens
    assert budget >= min(floor, step_tokens - decodes)
    assert prefill_budget(config, decodes + 1, step_tokens) <= budget


def schedule_prefill_beside_decodes(model_path: str, **chunking: object) -> list[int]:
    """Prompt tokens of each step for a long prompt that comes while four requests decode."""
    config = make_config(model_path, SCHEDULER_CLASS, policy="asymcache", chunking=chunking)
    lone = LoneScheduler(make_scheduler(config, 120))
    for number in range(4):
        lone.add(f"decode {number}", [number] * 10, output_tokens=60)
    lone.step()
    lone.add("prompt", list(range(400)), output_tokens=1)
    steps = [lone.step() for _ in range(12)]
    return [step.scheduled["prompt"][0] for step in steps if "prompt" in step.scheduled]


def test_scheduler_shrinks_the_prefill_and_off_is_stock(tiny_model_path: str) -> None:
    assert schedule_prefill_beside_decodes(tiny_model_path, enabled=False)[:4] == [92, 92, 92, 92]
    assert schedule_prefill_beside_decodes(tiny_model_path, threshold=4)[:4] == [92, 92, 92, 92]
    # 96 · 2 / 4 beside the decodes; the floor counts where that is less.
    assert schedule_prefill_beside_decodes(tiny_model_path, threshold=2, floor=8)[:4] == [48, 48, 48, 48]
    assert schedule_prefill_beside_decodes(tiny_model_path, threshold=1, floor=40)[:4] == [40, 40, 40, 40]
