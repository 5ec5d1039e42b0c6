from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hand_clock import Clock
from made_inputs import make_inputs
from python_lru import PythonLru
from vllm import PoolingParams, SamplingParams
from vllm.v1.request import Request

from agentcache._evictor import Evictor, FreeContext, LruEvictor, PinnedEvictor
from agentcache.config import AgentCacheConfig
from agentcache.engine.jobs.job_finder import generates_text
from agentcache.engine.jobs.tracker import JobTracker
from agentcache.engine.setup.jobs import JobsBuild
from agentcache.policy.runtime_policy import Order, RuntimePolicy
from tool_runtime.learning.continuum import ContinuumCode, ContinuumPaper
from tool_runtime.learning.durations import Ended
from tool_runtime.learning.durations_file import load_durations
from tool_runtime.learning.runtime import AgentRuntime
from tool_runtime.learning.tool_key import ToolKey
from tool_runtime.learning.ttl import RELEASE, HazardTtl, Hold, TtlEstimator

INPUTS = make_inputs(num_blocks=100)


def make(
    runtime_policy: RuntimePolicy, evictor: Evictor | None = None, rank: int = 0, **knobs: Any
) -> tuple[Evictor, JobTracker]:
    parallel = SimpleNamespace(data_parallel_index=rank, world_size=1)
    scheduler: Any = SimpleNamespace(
        vllm_config=SimpleNamespace(
            parallel_config=parallel, observability_config=SimpleNamespace(otlp_traces_endpoint=None)
        ),
        block_size=16,
        hash_block_size=16,
        find_hits=lambda _: [],
        count_elsewhere=lambda _: 0,
        count_running=lambda: 0,
        count_waiting=lambda: 0,
        connector=None,
    )
    build = JobsBuild(
        scheduler=scheduler,
        config=AgentCacheConfig.model_validate(knobs),
        runtime_policy=runtime_policy,
        inputs=INPUTS,
        clock=Clock(),
    )
    used = build.add_pins(LruEvictor() if evictor is None else evictor)
    return used, build.make(used)


def learn_and_hold(runtime: AgentRuntime) -> Hold:
    """How long to keep a turn after a tool that took half a second to five."""
    for seconds in (0.5, 0.8, 1.0, 1.0, 1.5, 5.0):
        runtime.durations.observe(ToolKey("bash"), seconds, Ended.RETURNED, 0.0)
    return runtime.decide_hold(ToolKey("bash"), age_s=0.1, loss_s=9.0, prefill_s=9.0, share=0.1, queued=True)


@pytest.mark.parametrize(
    ("runtime_policy", "estimator"),
    [
        (RuntimePolicy(), None),
        (RuntimePolicy(ttl="released"), ContinuumCode()),
        (RuntimePolicy(ttl="published"), ContinuumPaper()),
        (RuntimePolicy(ttl="hazard"), HazardTtl()),
    ],
)
def test_a_policy_that_holds_gets_pins(runtime_policy: RuntimePolicy, estimator: TtlEstimator | None) -> None:
    evictor, tracker = make(runtime_policy)
    assert isinstance(evictor, PinnedEvictor) is (estimator is not None)
    assert (tracker.pins is not None) is (estimator is not None)
    hold = learn_and_hold(tracker.runtime)
    assert hold == learn_and_hold(AgentRuntime(clock=Clock(), estimator=estimator))
    assert (hold.ttl_s > 0) is (estimator is not None)


def test_pins_can_be_turned_off_and_on() -> None:
    given = LruEvictor()
    evictor, tracker = make(RuntimePolicy(ttl="released"), given, pins={"enabled": False})
    assert (evictor, tracker.pins) == (given, None)
    evictor, tracker = make(RuntimePolicy(factors=True), pins={"enabled": True})
    assert isinstance(evictor, PinnedEvictor)
    assert tracker.pins is not None
    # They last as long as ours: the policy has no time of its own.
    assert learn_and_hold(tracker.runtime) == learn_and_hold(make(RuntimePolicy(ttl="hazard"))[1].runtime)


def test_an_evictor_in_python_gets_pins_like_any_other() -> None:
    given = PythonLru()
    evictor, tracker = make(RuntimePolicy(ttl="hazard"), given)
    assert isinstance(evictor, PinnedEvictor)
    assert evictor.inner is given
    assert tracker.pins is not None
    evictor.add([1, 2], [16, 32], 0.0, FreeContext(pin=7))
    evictor.add([3, 4], [16, 32], 1.0)
    assert evictor.evict(3, 2.0)[:2] == [3, 4], "pinned blocks go last"
    assert (given.ids, evictor.size_of(7)) == ([], 1)


def test_the_budget_is_a_share_of_the_cache() -> None:
    _, tracker = make(RuntimePolicy(ttl="hazard"), pins={"budget": 0.3})
    assert tracker.pins is not None
    assert tracker.pins.budget_blocks == 30
    _, tracker = make(RuntimePolicy(ttl="hazard"))
    assert tracker.pins is not None
    assert tracker.pins.budget_blocks == 100


@pytest.mark.parametrize(
    ("runtime_policy", "knobs", "order"),
    [
        (RuntimePolicy(), {}, None),
        (RuntimePolicy(), {"enabled": True}, Order()),
        (RuntimePolicy(), {"patience_s": 5.0}, None),
        (RuntimePolicy(order=Order(patience_s=9.0)), {}, Order(patience_s=9.0)),
        (RuntimePolicy(order=Order(seniority_s=4.0)), {"patience_s": 5.0}, Order(seniority_s=4.0, patience_s=5.0)),
        (RuntimePolicy(order=Order()), {"enabled": False}, None),
    ],
)
def test_the_order_is_the_policy_s_with_what_the_knobs_say(
    runtime_policy: RuntimePolicy, knobs: dict[str, Any], order: Order | None
) -> None:
    assert make(runtime_policy, order=knobs)[1].runtime_policy.order == order


def test_constants_of_the_order_go_before_the_policy_s() -> None:
    policy = RuntimePolicy(order=Order(seniority_s=4.0, reserve=0.5))
    _, tracker = make(policy, order={"patience_s": 5.0}, tuning={"seniority_s": 3.0, "reserve": 0.0})
    found = tracker.runtime_policy
    assert found.order == Order(seniority_s=3.0, patience_s=5.0)


def test_the_bounds_of_the_job_table_are_set() -> None:
    _, tracker = make(RuntimePolicy(), runtime={"max_idle_s": 5.0}, tuning={"max_jobs": 2})
    for session in "abc":
        tracker.runtime.arrived(session, session)
        tracker.runtime.failed(session, session)
    assert len(tracker.runtime.jobs) == 2


def test_only_requests_that_generate_text_in_one_go_are_turns() -> None:
    params = SamplingParams(max_tokens=1)
    assert generates_text(Request("a", [1], params, None))
    assert not generates_text(Request("a", [1], params, None, resumable=True))
    assert not generates_text(Request("a", [1], None, PoolingParams()))
    _, tracker = make(RuntimePolicy())
    tracker.arrived(Request("a", [1], SamplingParams(max_tokens=1, logprobs=2), None))
    assert len(tracker.runtime.jobs) == 0


def test_the_least_chance_and_the_longest_hold_are_set() -> None:
    def hold(**tuning: float) -> Hold:
        return learn_and_hold(make(RuntimePolicy(ttl="hazard"), tuning=tuning)[1].runtime)

    assert hold().ttl_s > 3.0 >= hold(max_ttl_s=3.0).ttl_s > 0
    assert hold(min_chance=0.99) == RELEASE != hold(min_chance=0.1)


def test_a_policy_that_protects_waiting_has_pins_but_no_holds() -> None:
    evictor, tracker = make(RuntimePolicy(protect_waiting=True))
    assert isinstance(evictor, PinnedEvictor)
    assert tracker.pins is not None
    assert learn_and_hold(tracker.runtime) == RELEASE


def test_what_was_learned_of_tools_is_in_a_file_for_each_engine(tmp_path: Path) -> None:
    path = tmp_path / "durations.json"
    for rank in (0, 1):
        _, tracker = make(RuntimePolicy(), rank=rank, runtime={"durations_file": str(path)})
        tracker.runtime.durations.observe(ToolKey("bash"), 3.0 + rank, Ended.RETURNED, 0.0)
        tracker.close()
    totals_s = {name: load_durations(tmp_path / name)[0][-1].total_s for name in ("durations.json", "durations.json.1")}
    assert totals_s == {"durations.json": 3.0, "durations.json.1": 4.0}
    assert len(list(tmp_path.iterdir())) == 2


def test_without_a_file_nothing_is_kept() -> None:
    make(RuntimePolicy())[1].close()
