"""One engine under one policy after another, with KV in the host's memory: as good as a fresh engine for each."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from crowd import Crowd, assert_equal_to_cold
from live_engine import BLOCK, LiveEngine, make_prompt
from lone_scheduler import make_config
from pushed_out import SEARCH, push_out, settle
from tiered_engine import TIER, start_tiered
from tiered_scheduler import make_connected
from vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector import SimpleCPUOffloadConnector
from vllm.v1.core.sched.output import SchedulerOutput

from agentcache.config import AgentCacheConfig
from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.rpc.policy_switch import use_policy
from agentcache.engine.tier.succession import can_be_succeeded, take_over
from agentcache.errors import InputError

PROMPT = make_prompt(seed=1, tokens=20 * BLOCK + 7)


@pytest.fixture(scope="module")
def cold(tiny_model_path: str) -> LiveEngine:
    """The oracle: stock vLLM that computes every prompt."""
    return LiveEngine(tiny_model_path, scheduler=None, enable_prefix_caching=False)


def go_on(engine: LiveEngine, policy: str) -> None:
    settle(engine)
    engine.use(policy, look_s=0.01, tier=TIER)


def numbers_of(copies: list[Any]) -> set[int]:
    return {number for copy in copies for number in (copy.load_event, copy.store_event) if number >= 0}


def note_copies(engine: LiveEngine, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    copies: list[Any] = []
    tier = engine.scheduler.tier
    begin = tier.begin_copies

    def begin_and_note(step: SchedulerOutput) -> Any:
        copies.append(begin(step))
        return copies[-1]

    monkeypatch.setattr(tier, "begin_copies", begin_and_note)
    return copies


@pytest.mark.engine
def test_a_second_policy_has_both_caches_to_itself(
    cold: LiveEngine, tiny_model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_tiered(tiny_model_path, 300) as engine:
        first = engine.scheduler.tier
        before = note_copies(engine, monkeypatch)
        engine.ask(PROMPT, 4, session="mine", calls=[SEARCH])
        push_out(engine)
        assert engine.ask(PROMPT, 4, session="mine", calls=[SEARCH]).cached == 20 * BLOCK
        # As vLLM does for --kv-offloading-size once its engine core is up.
        engine._core.vllm_config.kv_transfer_config.kv_connector = "OffloadingConnector"
        go_on(engine, "agentcache")
        tier = engine.scheduler.tier
        after = note_copies(engine, monkeypatch)
        assert (tier.fetched_blocks, len(tier.host.find_used())) == (0, 0)
        assert engine.ask(PROMPT, 4, session="mine", calls=[SEARCH]).cached == 0
        crowd = Crowd(engine, random.Random(9))
        crowd.run(jobs=6, turns=4)
        settle(engine)
    assert tier is not first
    assert tier.fetched_blocks > 10
    # The workers take a number that they have seen for done.
    assert max(numbers_of(before)) < min(numbers_of(after))
    assert_equal_to_cold(crowd, cold)


@pytest.mark.engine
def test_policies_that_steer_nothing_want_another_connector(tiny_model_path: str) -> None:
    with start_tiered(tiny_model_path, 30) as engine:
        settle(engine)
        scheduler = engine.scheduler
        for config in (AgentCacheConfig(policy="lru"), AgentCacheConfig(policy="agentcache", tier={"enabled": False})):
            with pytest.raises(InputError, match="a KV connector is in use"):
                use_policy(engine._core, config)
        assert engine.scheduler is scheduler
        assert len(engine.ask(PROMPT, 4).tokens) == 4


@pytest.mark.engine
def test_a_policy_that_cannot_steer_leaves_nothing(tiny_model_path: str, tmp_path: Path) -> None:
    record = {"file": str(tmp_path / "record.jsonl")}
    unsteered = AgentCacheConfig(policy="agentcache", segments={"enabled": False}, record=record)
    with start_tiered(tiny_model_path, 30) as engine:
        settle(engine)
        scheduler, given = engine.scheduler, engine._core.vllm_config.additional_config
        threads = threading.enumerate()
        with pytest.raises(InputError, match="the next one does not steer the host's memory"):
            use_policy(engine._core, unsteered)
        assert (engine.scheduler, engine._core.vllm_config.additional_config) == (scheduler, given)
        assert threading.enumerate() == threads


def make_connector(model_path: str, policy: str, *, steered: bool, **engine: Any) -> Any:
    config = make_config(model_path, SCHEDULER_CLASS, engine, policy=policy)
    return make_connected(config, blocks=40, host_blocks=200, steered=steered).connector


def can_follow(connector: Any, policy: str, offloading_gib: float | None) -> bool:
    config: Any = SimpleNamespace(cache_config=SimpleNamespace(kv_offloading_size=offloading_gib))
    return can_be_succeeded(connector, config, AgentCacheConfig(policy=policy))


def test_copies_of_vllms_own_connector_are_counted_on(tiny_model_path: str) -> None:
    old, new = (make_connector(tiny_model_path, "vllm", steered=False) for _ in range(2))
    assert can_follow(old, "vllm", offloading_gib=1.0)
    assert not can_follow(old, "agentcache", offloading_gib=1.0), "it would have ours"
    assert can_follow(old, "agentcache", offloading_gib=None)
    old.scheduler_manager._load_event_counter, old.scheduler_manager._store_event_counter = 7, 11
    take_over(old, new)
    manager = new.scheduler_manager
    assert (manager._load_event_counter, manager._store_event_counter) == (7, 11)
    for loads in (old.scheduler_manager._reqs_to_load, old.scheduler_manager._abandoned_reqs_to_load):
        loads["aborted"] = object()
        with pytest.raises(InputError, match="KV is on its way from the host's memory"):
            take_over(old, new)
        loads.clear()


class OtherConnector(SimpleCPUOffloadConnector):
    """It may keep more than block numbers."""


def test_a_connector_made_of_vllms_is_not_taken_over() -> None:
    assert not can_follow(object.__new__(OtherConnector), "vllm", offloading_gib=None)


def test_nothing_is_counted_without_prefix_caching(tiny_model_path: str) -> None:
    old, new = (make_connector(tiny_model_path, "vllm", steered=False, enable_prefix_caching=False) for _ in range(2))
    take_over(old, new)
    assert new.scheduler_manager is None


def test_a_steered_tier_is_not_left_to_vllm(tiny_model_path: str) -> None:
    """Its numbers are not those of vLLM's own scheduler."""
    steered, left = (make_connector(tiny_model_path, policy, steered=True) for policy in ("agentcache", "vllm"))
    assert (steered.tier is None, left.tier is None) == (False, True)
    assert not can_follow(left, "agentcache", offloading_gib=None)
    with pytest.raises(InputError, match="does not steer the host's memory"):
        take_over(steered, left)
