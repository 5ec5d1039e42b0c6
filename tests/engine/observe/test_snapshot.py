from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from lone_scheduler import BLOCK_SIZE, LoneScheduler, make_config, make_scheduler
from vllm.v1.engine.core import EngineCoreProc

from agentcache.engine.blocks.block_queue import Evictions
from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.rpc.core_calls import answer_front_ends
from agentcache.engine.rpc.snapshot import (
    SNAPSHOT_METHOD,
    BlockCounts,
    EngineSnapshot,
    RequestCounts,
    make_snapshot,
)
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.views import SegmentCounts

BLOCKS = 41
PROMPT = list(range(20 * BLOCK_SIZE + 3))


def make_lone(model_path: str, policy: str = "asymcache", **knobs: Any) -> LoneScheduler:
    tuning = {"row_s": 0.0, **knobs.pop("tuning", {})}
    config = make_config(model_path, SCHEDULER_CLASS, policy=policy, tuning=tuning, **knobs)
    return LoneScheduler(make_scheduler(config, BLOCKS))


def run(lone: LoneScheduler, name: str, prompt: list[int]) -> None:
    lone.add(name, prompt, output_tokens=1)
    while not lone.idle:
        lone.step()


def test_a_fresh_scheduler_has_counted_nothing(tiny_model_path: str) -> None:
    found = make_snapshot(make_lone(tiny_model_path).scheduler)
    assert found.policy == "asymcache"
    assert found.segments == SegmentCounts(requests={}, fill_tokens=0, islands_dropped=0, fallbacks={})
    assert found.segments_obstacle is None
    assert found.evictions == {cause: Evictions(blocks=0, age_s=0.0) for cause in ("capacity", "reset")}
    assert found.prefill_budget is None
    assert found.blocks == BlockCounts(total=BLOCKS - 1, used=0, free=BLOCKS - 1, tokens_per_block=BLOCK_SIZE)
    assert found.requests == RequestCounts(running=0, waiting=0)


def test_knobs_are_those_in_force_not_only_those_given(tiny_model_path: str) -> None:
    given = make_snapshot(make_lone(tiny_model_path, chunking={"enabled": False}, lifespan_s=7).scheduler).knobs
    assert (given["lifespan_s"], given["tuning"]["row_s"]) == (7, 0.0)
    assert (given["segments"]["enabled"], given["chunking"]["enabled"]) == (True, False)
    plain = make_snapshot(make_lone(tiny_model_path, "lru").scheduler).knobs
    assert (plain["segments"]["enabled"], plain["chunking"]["enabled"]) == (False, False)


def test_fill_rows_and_evictions_are_counted(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path)
    ticks = iter(range(1, 10_000))
    lone.scheduler.clock = lambda: float(next(ticks))
    run(lone, "first", PROMPT)
    lost = [block for block in lone.pool.blocks if block.block_hash and block.block_hash_num_tokens == 3 * BLOCK_SIZE]
    lone.pool.evict_blocks({block.block_id for block in lost})
    run(lone, "second", PROMPT)
    run(lone, "other", [token + 1000 for token in range(30 * BLOCK_SIZE)])
    found = make_snapshot(lone.scheduler)
    assert found.segments == SegmentCounts(requests={2: 1}, fill_tokens=BLOCK_SIZE, islands_dropped=0, fallbacks={})
    capacity = found.evictions["capacity"]
    assert capacity.blocks == lone.scheduler.block_queue.evictions["capacity"].blocks > 0
    assert capacity.age_s >= capacity.blocks, "the clock goes on by a second whenever it is read"


def test_running_requests_leave_fill_rows_out(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path)
    run(lone, "first", PROMPT)
    # More than a step computes.
    gap = [b.block_id for b in lone.pool.blocks if b.block_hash and b.block_hash_num_tokens <= 8 * BLOCK_SIZE]
    lone.pool.evict_blocks(set(gap))
    lone.add("second", PROMPT, output_tokens=5)
    lone.add("third", PROMPT[::-1], output_tokens=5)
    lone.step()
    assert [request.request_id for request in lone.scheduler.running] == ["second#fill-0"]
    found = make_snapshot(lone.scheduler)
    assert found.requests == RequestCounts(running=0, waiting=2)
    assert found.blocks.used == found.blocks.total - found.blocks.free > 0


def test_prefill_budget_is_that_of_the_last_step(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, tuning={"chunking_threshold": 2, "chunking_floor": 8})
    for number in range(4):
        lone.add(f"decode {number}", [number] * 10, output_tokens=60)
    lone.step()
    assert make_snapshot(lone.scheduler).prefill_budget == 96
    lone.step()
    # 96 · 2 / 4, for four decodes.
    assert make_snapshot(lone.scheduler).prefill_budget == 48


def test_stock_policy_has_only_blocks_and_requests(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, "vllm")
    run(lone, "first", PROMPT)
    found = make_snapshot(lone.scheduler)
    assert (found.evictions, found.segments, found.prefill_budget, found.lambda_value) == ({}, None, None, None)
    assert found.blocks.free == BLOCKS - 1


def test_an_engine_that_cannot_have_gaps_says_why(tiny_model_path: str) -> None:
    config = make_config(tiny_model_path, SCHEDULER_CLASS, {"enable_prefix_caching": False}, policy="asymcache")
    found = make_snapshot(make_scheduler(config, BLOCKS))
    assert (found.segments, found.segments_obstacle) == (None, "prefix caching is off")
    assert found.knobs["segments"]["enabled"] is False


def test_lambda_is_read_from_an_evictor_that_has_one(tiny_model_path: str) -> None:
    scheduler = make_lone(tiny_model_path).scheduler
    scheduler.evictor = SimpleNamespace(lambda_value=2.5)
    assert make_snapshot(scheduler).lambda_value == 2.5


@pytest.fixture
def method(monkeypatch: pytest.MonkeyPatch) -> Any:
    # Gone again afterwards.
    monkeypatch.setattr(EngineCoreProc, SNAPSHOT_METHOD, None, raising=False)
    answer_front_ends()
    return getattr(EngineCoreProc, SNAPSHOT_METHOD)


def test_the_engine_core_answers_with_plain_values(method: Any, tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path)
    assert isinstance(lone.scheduler, AgentScheduler)
    lone.scheduler.gap_filler.stats.requests[3] += 2
    answer = method(SimpleNamespace(scheduler=lone.scheduler, engine_index=1))
    assert answer["segments"]["requests"] == {"3": 2}
    read = EngineSnapshot.model_validate(answer)
    assert read.engine == 1
    assert read.model_dump(exclude={"engine"}) == make_snapshot(lone.scheduler).model_dump()


def test_the_engine_core_of_another_scheduler_has_nothing_to_say(method: Any, tiny_model_path: str) -> None:
    stock = make_scheduler(make_config(tiny_model_path, None), BLOCKS)
    assert method(SimpleNamespace(scheduler=stock, engine_index=0)) is None
