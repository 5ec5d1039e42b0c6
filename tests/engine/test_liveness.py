"""Whatever jobs want of the caches, work goes on, and little of it is done twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from live_jobs import Case, LiveRun, draw_case, make_live
from sizes import pick_size

from agentcache.engine.setup import parts
from agentcache.policy.price import RecomputeCost
from agentcache.policy.registry import EvictorInputs

# Requests that fetch took from each other for ever, where each did not keep what it had fetched.
STOOD_STILL = (43, 128)


@pytest.fixture
def run_live(tiny_model_path: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Blocks cost as much as the case says: those of a tiny model are never worth a pin or a wait."""
    build = parts.build_inputs

    def run(case: Case) -> LiveRun:
        def price(*args: Any, **options: Any) -> EvictorInputs:
            inputs = build(*args, **options)
            if not case.block_s:
                return inputs
            return replace(inputs, recompute_cost=RecomputeCost(case.block_s / 1000, case.block_s, 1e-9))

        monkeypatch.setattr(parts, "build_inputs", price)
        live = LiveRun(make_live(tiny_model_path, case), case)
        live.run()
        return live

    return run


@pytest.mark.parametrize("seed", sorted({*range(pick_size(3, 400)), *STOOD_STILL}))
def test_work_goes_on_and_little_is_done_twice(seed: int, run_live: Any) -> None:
    counts = run_live(draw_case(seed)).counts
    assert counts.computed_tokens <= 1.5 * counts.wanted_tokens
    assert counts.fetched_blocks <= counts.asked_blocks
