from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hand_clock import Clock
from python_lru import PythonLru
from vllm import PoolingParams, SamplingParams
from vllm.v1.request import Request

from agentcache.config import AgentCacheConfig
from agentcache.engine.job_tracker import JobTracker
from agentcache.engine.tracker_setup import TrackerSetup, is_of_a_job
from agentcache.policy.cost import LossCost
from agentcache.policy.evictor import Evictor
from agentcache.policy.frequency import Frequency
from agentcache.policy.grouped import Learning
from agentcache.policy.inputs import EvictorInputs
from agentcache.policy.lifespan import LambdaBounds
from agentcache.policy.lru import LruEvictor
from agentcache.policy.pinned import PinnedEvictor
from agentcache.policy.steering import Order, Steering
from tool_runtime.durations import Ended
from tool_runtime.tool_key import ToolKey
from tool_runtime.ttl import ContinuumCode, ContinuumPaper, HazardTtl, TtlEstimator

INPUTS = EvictorInputs(
    num_blocks=100,
    loss=LossCost(slope_s=1e-9, base_s=2e-5, floor_s=1e-7),
    frequency=Frequency(alpha_s=14.0, beta_s=0.35, tau0_s=9.75),
    lifespan_window=10,
    lambda_bounds=LambdaBounds(),
    learning=Learning(),
)


def make(
    steering: Steering, evictor: Evictor | None = None, vllm_config: Any = None, **knobs: Any
) -> tuple[Evictor, JobTracker]:
    """Only a tool parser and a file of durations need vLLM's configuration."""
    setup = TrackerSetup(
        vllm_config=vllm_config,
        config=AgentCacheConfig.model_validate(knobs),
        steering=steering,
        inputs=INPUTS,
        block_size=16,
        find_hits=lambda _: [],
        count_requests=lambda: (0, 0),
        clock=Clock(),
    )
    return setup.make(LruEvictor() if evictor is None else evictor)


@pytest.mark.parametrize(
    ("steering", "estimator"),
    [
        (Steering(), None),
        (Steering(ttl="released"), ContinuumCode),
        (Steering(ttl="published"), ContinuumPaper),
        (Steering(ttl="hazard"), HazardTtl),
    ],
)
def test_a_policy_that_holds_gets_pins(steering: Steering, estimator: type[TtlEstimator] | None) -> None:
    evictor, tracker = make(steering)
    assert isinstance(evictor, PinnedEvictor) is (estimator is not None)
    assert (tracker.pins is not None) is (estimator is not None)
    assert type(tracker.runtime._estimator) is (estimator or type(None))


def test_pins_can_be_turned_off_and_on() -> None:
    given = LruEvictor()
    evictor, tracker = make(Steering(ttl="released"), given, pins={"enabled": False})
    assert (evictor, tracker.pins) == (given, None)
    evictor, tracker = make(Steering(factors=True), pins={"enabled": True})
    assert isinstance(evictor, PinnedEvictor)
    assert tracker.pins is not None
    # They last as long as ours: the policy has no time of its own.
    assert isinstance(tracker.runtime._estimator, HazardTtl)


def test_an_evictor_in_python_cannot_pin() -> None:
    given = PythonLru()
    evictor, tracker = make(Steering(ttl="hazard"), given)
    assert (evictor, tracker.pins) == (given, None)


def test_the_budget_is_a_share_of_the_cache_and_a_tenant_s_a_share_of_that() -> None:
    _, tracker = make(Steering(ttl="hazard"), pins={"budget": 0.3, "tenant_budget": 0.5})
    assert tracker.pins is not None
    assert (tracker.pins.budget_blocks, tracker.pins._tenant_blocks) == (30, 15)
    _, tracker = make(Steering(ttl="hazard"))
    assert tracker.pins is not None
    assert tracker.pins.budget_blocks == 100


@pytest.mark.parametrize(
    ("steering", "knobs", "order"),
    [
        (Steering(), {}, None),
        (Steering(), {"enabled": True}, Order()),
        (Steering(), {"patience_s": 5.0}, None),
        (Steering(order=Order(patience_s=9.0)), {}, Order(patience_s=9.0)),
        (Steering(order=Order(seniority_s=4.0)), {"patience_s": 5.0}, Order(seniority_s=4.0, patience_s=5.0)),
        (Steering(order=Order(patience_s=9.0)), {"seniority_s": 3.0}, Order(seniority_s=3.0, patience_s=9.0)),
        (Steering(order=Order()), {"enabled": False}, None),
    ],
)
def test_the_order_is_the_policy_s_with_what_the_knobs_say(
    steering: Steering, knobs: dict[str, Any], order: Order | None
) -> None:
    assert make(steering, order=knobs)[1]._steering.order == order


def test_the_bounds_of_the_job_table_are_knobs() -> None:
    _, tracker = make(Steering(), runtime={"max_jobs": 2, "max_idle_s": 5.0})
    for session in "abc":
        tracker.runtime.arrived(session, session)
        tracker.runtime.failed(session, session)
    assert len(tracker.runtime.jobs) == 2


def test_only_requests_that_generate_text_in_one_go_are_turns() -> None:
    params = SamplingParams(max_tokens=1)
    assert is_of_a_job(Request("a", [1], params, None))
    assert not is_of_a_job(Request("a", [1], params, None, resumable=True))
    assert not is_of_a_job(Request("a", [1], None, PoolingParams()))


def test_the_least_chance_and_the_longest_hold_are_knobs() -> None:
    _, tracker = make(Steering(ttl="hazard"), pins={"min_chance": 0.7, "max_ttl_s": 3.0})
    estimator: Any = tracker.runtime._estimator
    assert (estimator._min_chance, estimator._max_ttl_s) == (0.7, 3.0)


def test_a_policy_that_protects_who_waits_has_pins_though_it_holds_no_turns() -> None:
    evictor, tracker = make(Steering(protect_waiting=True))
    assert isinstance(evictor, PinnedEvictor)
    assert tracker.pins is not None
    assert tracker.runtime._estimator is None


def test_what_was_learned_of_tools_is_kept_in_a_file_for_each_engine(tmp_path: Path) -> None:
    path = tmp_path / "durations.json"
    for rank in (0, 1):
        parallel = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_index=rank))
        _, tracker = make(Steering(), vllm_config=parallel, runtime={"durations_file": str(path)})
        tracker.runtime.durations.observe(ToolKey("bash"), 3.0 + rank, Ended.RETURNED, 0.0)
        tracker.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["durations.json", "durations.json.1"]
    _, tracker = make(Steering(), vllm_config=parallel, runtime={"durations_file": str(path)})
    assert tracker.runtime.durations.history(ToolKey("bash")).tool_mean_s == 4.0


def test_without_a_file_nothing_is_kept() -> None:
    make(Steering())[1].close()
