"""What vLLM's scheduler does with the connector of the CPU cache, which ours stands in for."""

from __future__ import annotations

from typing import Any

import pytest
from lone_scheduler import BLOCK_SIZE
from tiered_scheduler import TieredScheduler, make_tiered

PROMPT = list(range(1, 3 * BLOCK_SIZE + 6))


@pytest.fixture
def lone(tiny_model_path: str) -> TieredScheduler:
    return make_tiered(tiny_model_path)


def watch(lone: TieredScheduler, name: str, answer: Any = None) -> list[tuple[Any, ...]]:
    """The arguments of each call of a method of the connector, which then returns `answer`, if there is one."""
    calls: list[tuple[Any, ...]] = []
    connector = lone.scheduler.connector
    own = getattr(connector, name)

    def noting(*args: Any) -> Any:
        calls.append(args)
        return own(*args) if answer is None else answer

    setattr(connector, name, noting)
    return calls


def test_a_connector_can_have_a_turn_wait_or_fetches_are_late(lone: TieredScheduler) -> None:
    calls = watch(lone, "get_num_new_matched_tokens", (None, False))
    lone.add("one", PROMPT, 2)
    assert lone.step().scheduled == {}
    assert [request.request_id for request, _ in calls] == ["one"]
    assert lone.scheduler.get_request_counts() == (0, 1)


def test_a_connector_learns_of_local_hits_or_fetches_them(lone: TieredScheduler) -> None:
    lone.add("one", PROMPT, 2)
    lone.run_until_idle()
    calls = watch(lone, "get_num_new_matched_tokens")
    lone.add("two", PROMPT, 2)
    lone.step()
    assert calls[-1][1] == 3 * BLOCK_SIZE


def test_each_step_tells_the_workers_or_nothing_is_copied(lone: TieredScheduler) -> None:
    calls = watch(lone, "build_connector_meta")
    lone.add("one", PROMPT, 2)
    lone.step()
    ((output,),) = calls
    assert set(output.num_scheduled_tokens) == {"one"}
    assert output.kv_connector_metadata is not None


def test_a_connector_s_end_frees_blocks_or_they_are_lost(lone: TieredScheduler) -> None:
    calls = watch(lone, "request_finished_all_groups")
    lone.add("one", PROMPT, 1)
    lone.run_until_idle()
    assert [request.request_id for request, _ in calls] == ["one"]
    assert lone.pool.get_num_free_blocks() == 39
