"""In which order vLLM's scheduler does what a step consists of."""

from __future__ import annotations

from typing import Any

import pytest
from lone_scheduler import BLOCK_SIZE, EOS, LoneScheduler
from stock import MakeStock
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus


def prompt(seed: int, blocks: float) -> list[int]:
    return [(seed * 1009 + place) % 8000 for place in range(int(blocks * BLOCK_SIZE))]


def note_calls(monkeypatch: pytest.MonkeyPatch, *methods: tuple[type, str]) -> list[str]:
    """The names of what is called, in order."""
    calls: list[str] = []
    for owner, name in methods:
        own = getattr(owner, name)

        def noting(*args: Any, own: Any = own, name: str = name, **options: Any) -> Any:
            calls.append(name)
            return own(*args, **options)

        monkeypatch.setattr(owner, name, noting)
    return calls


def run(lone: LoneScheduler) -> None:
    while not lone.idle:
        lone.step()


def test_what_is_peeked_is_popped_or_another_is_admitted(
    make_stock: MakeStock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lone = make_stock()
    lone.add("one", prompt(1, 2), 2)
    lone.add("two", prompt(2, 2), 2)
    calls = note_calls(monkeypatch, (FCFSRequestQueue, "peek_request"), (FCFSRequestQueue, "pop_request"))
    lone.step()
    assert calls[:2] == ["peek_request", "pop_request"]
    assert calls.count("pop_request") == 2
    assert all(calls[place - 1] == "peek_request" for place, call in enumerate(calls) if call == "pop_request")


def test_the_last_running_is_preempted_or_victims_differ(make_stock: MakeStock) -> None:
    lone = make_stock(blocks=13)
    for seed in (1, 2, 3):
        lone.add(f"{seed}", prompt(seed, 1.9), 60)
    while not (preempted := lone.step().preempted):
        assert [request.request_id for request in lone.scheduler.running] == ["1", "2", "3"]
    assert preempted == ["3"]


def test_preempted_come_first_again_or_order_is_lost(make_stock: MakeStock) -> None:
    lone = make_stock(blocks=13)
    for seed in (1, 2, 3):
        lone.add(f"{seed}", prompt(seed, 1.9), 60)
    lone.step()
    lone.add("new", prompt(9, 8), 2)
    while not lone.step().preempted:
        pass
    first = lone.scheduler.waiting.peek_request()
    assert (first.request_id, first.status, first.num_computed_tokens) == ("3", RequestStatus.PREEMPTED, 0)
    assert first.num_preemptions == 1


def test_skipped_blocks_go_before_new_or_windows_lose_kv(
    make_stock: MakeStock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lone = make_stock()
    lone.add("one", prompt(1, 2), 2)
    calls = note_calls(monkeypatch, (KVCacheCoordinator, "remove_skipped_blocks"), (BlockPool, "get_new_blocks"))
    lone.step()
    assert calls[:2] == ["remove_skipped_blocks", "get_new_blocks"]


def test_hashes_come_before_kv_or_gaps_are_filled_twice(make_stock: MakeStock) -> None:
    lone = make_stock()
    lone.add("one", prompt(1, 3), 2)
    lone.scheduler.schedule()
    assert len(lone.find_blocks(prompt(1, 3))) == 3


def test_a_twin_in_one_step_hits_or_fills_are_too_early(make_stock: MakeStock) -> None:
    lone = make_stock()
    for name in ("one", "two"):
        lone.add(name, prompt(1, 3.5), 2)
    step = lone.step()
    assert [step.scheduled[name][1] for name in ("one", "two")] == [0, 3 * BLOCK_SIZE]


def test_the_last_token_is_computed_or_hits_are_too_long(make_stock: MakeStock) -> None:
    lone = make_stock()
    for name in ("one", "two"):
        lone.add(name, prompt(1, 3), 1)
        step = lone.step()
    assert step.scheduled["two"][:2] == (BLOCK_SIZE, 2 * BLOCK_SIZE)


def test_outputs_of_the_finished_are_dropped_or_fills_leak(make_stock: MakeStock) -> None:
    lone = make_stock(in_flight=2)
    lone.add("one", prompt(1, 2), 9)
    lone.step()
    lone.abort("one")
    step = lone.step()
    assert (step.finished, lone.scheduler.requests) == ({}, {})
    run(lone)


def test_an_abort_frees_at_once_or_a_hold_outlives_it(make_stock: MakeStock) -> None:
    lone = make_stock()
    lone.add("one", prompt(1, 2), 9)
    lone.step()
    (aborted,) = lone.scheduler.finish_requests("one", RequestStatus.FINISHED_ABORTED)
    assert (aborted.request_id, lone.pool.get_num_free_blocks()) == ("one", 63)


def test_frees_wait_for_steps_in_flight_or_kv_is_overrun(make_stock: MakeStock) -> None:
    lone = make_stock(in_flight=2)
    # As under a KV connector.
    lone.scheduler.defer_block_free = True
    lone.add("one", prompt(1, 2.5), 9)
    lone.step()
    lone.abort("one")
    assert (len(lone.scheduler.deferred_frees), lone.pool.get_num_free_blocks()) == (1, 60)
    lone.add("two", prompt(2, 1), 3)
    run(lone)
    assert (len(lone.scheduler.deferred_frees), lone.pool.get_num_free_blocks()) == (0, 63)


def test_a_stop_frees_within_its_step_or_pins_come_late(make_stock: MakeStock, monkeypatch: pytest.MonkeyPatch) -> None:
    lone = make_stock()
    calls = note_calls(monkeypatch, (Scheduler, "_free_request"), (Scheduler, "_free_request_blocks"))
    lone.add("one", prompt(1, 2), 9, reply=[5, EOS])
    lone.step()
    assert calls == []
    assert lone.step().finished == {"one": [*prompt(1, 2), 5, EOS]}
    assert calls == ["_free_request", "_free_request_blocks"]
    assert lone.pool.get_num_free_blocks() == 63


def test_a_step_s_tokens_count_at_once_or_steps_overlap(make_stock: MakeStock) -> None:
    lone = make_stock(in_flight=2)
    lone.add("one", prompt(1, 2), 9)
    lone.scheduler.schedule()
    request = lone.scheduler.requests["one"]
    assert (request.num_computed_tokens, request.num_output_placeholders) == (2 * BLOCK_SIZE, 1)
    assert not request.is_prefill_chunk


def test_a_part_of_a_prompt_is_marked_or_tokens_are_made_up(make_stock: MakeStock) -> None:
    lone = make_stock()
    lone.add("long", prompt(1, 8), 2)
    lone.scheduler.schedule()
    request = lone.scheduler.requests["long"]
    assert (request.num_computed_tokens, request.is_prefill_chunk) == (96, True)


def test_a_step_s_limit_is_read_anew_or_chunking_is_off(make_stock: MakeStock) -> None:
    lone = make_stock()
    lone.add("long", prompt(1, 8), 2)
    lone.scheduler.max_num_scheduled_tokens = BLOCK_SIZE
    assert lone.step().scheduled["long"][0] == BLOCK_SIZE
    lone.scheduler.max_num_scheduled_tokens = 3 * BLOCK_SIZE
    assert lone.step().scheduled["long"][0] == 3 * BLOCK_SIZE


def test_admissions_are_recorded_once_or_gaps_count_twice(
    make_stock: MakeStock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lone = make_stock()
    calls = note_calls(monkeypatch, (KVCacheManager, "record_prefix_cache_stats"))
    lone.add("one", prompt(1, 8), 3)
    run(lone)
    assert calls == ["record_prefix_cache_stats"]


def test_hits_are_looked_up_once_or_plans_are_outdated(make_stock: MakeStock, monkeypatch: pytest.MonkeyPatch) -> None:
    lone = make_stock()
    calls = note_calls(
        monkeypatch, (KVCacheManager, "get_computed_blocks"), (KVCacheManager, "allocate_slots"), (BlockPool, "touch")
    )
    lone.add("one", prompt(1, 8), 3)
    lone.step()
    assert calls == ["get_computed_blocks", "allocate_slots"]
    lone.add("two", prompt(1, 4), 3)
    del calls[:]
    lone.step()
    assert calls.count("get_computed_blocks") == calls.count("touch") == 1


def test_without_room_nothing_changes_or_a_retry_fails(make_stock: MakeStock) -> None:
    lone = make_stock(blocks=6)
    lone.add("one", prompt(1, 6), 3)
    request = lone.scheduler.requests["one"]
    assert lone.scheduler.kv_cache_manager.allocate_slots(request, 6 * BLOCK_SIZE) is None
    assert lone.pool.get_num_free_blocks() == 5
    assert lone.scheduler.kv_cache_manager.allocate_slots(request, 5 * BLOCK_SIZE) is not None


def test_counts_tell_running_from_waiting_or_load_is_wrong(make_stock: MakeStock) -> None:
    lone = make_stock()
    for seed in range(8):
        lone.add(f"{seed}", prompt(seed, 0.5), 5)
    lone.step()
    assert lone.scheduler.get_request_counts() == (6, 2)


def test_a_paused_engine_keeps_what_waits_or_turns_end(make_stock: MakeStock) -> None:
    lone = make_stock()
    lone.add("one", prompt(1, 2), 3)
    lone.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    assert lone.step().scheduled == {}
    assert lone.scheduler.get_num_unfinished_requests() == 0
    lone.scheduler.set_pause_state(PauseState.UNPAUSED)
    assert set(lone.step().scheduled) == {"one"}
