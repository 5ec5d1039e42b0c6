"""What an engine keeps of requests that are over: nothing that grows with their prompts."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest
from lone_scheduler import LoneScheduler
from steered_scheduler import SEARCH, STEERED, make_lone, make_patient, tokens_of
from vllm.v1.request import Request

# So many blocks that pins are made, end and are made again, and that requests wait.
BLOCKS = 120
PROMPT = 400


def count_alive() -> int:
    """Requests that this test made, whoever refers to them."""
    gc.collect()
    return sum(type(each) is Request and each.request_id.startswith("held?") for each in gc.get_objects())


def serve(lone: LoneScheduler, first: int, turns: int, gap_s: float = 1.0) -> None:
    """Long pinned turns, four at a time, each of a job of its own; every seventh is aborted."""
    clock = lone.scheduler.clock
    for number in range(first, first + turns):
        name = f"held? {number}"
        lone.add(name, tokens_of(number, PROMPT), 20, calls=(SEARCH,), session_id=f"job {number}")
        clock.now_s += gap_s
        lone.step()
        if number % 7 == 0 and name in lone.scheduler.requests:
            lone.abort(name)
        while len(lone.scheduler.requests) >= 4:
            clock.now_s += gap_s
            lone.step()
    while not lone.idle:
        clock.now_s += gap_s
        lone.step()


def make_unwatched(model_path: str, policy: str, **knobs: Any) -> LoneScheduler:
    lone = make_patient(model_path, policy, BLOCKS, **knobs)
    lone.shadow = None
    return lone


@pytest.mark.parametrize("policy", STEERED)
def test_no_request_is_alive_once_the_engine_is_idle(tiny_model_path: str, policy: str) -> None:
    lone = make_unwatched(tiny_model_path, policy)
    serve(lone, 0, 60)
    pins = lone.scheduler.tracker.pins
    assert len(pins) > 1
    assert pins.ended.total() > 30
    assert count_alive() == 0


@pytest.mark.parametrize("policy", ["lru", "asymcache", "agentcache"])
def test_a_request_aborted_while_it_found_no_room_is_gone(tiny_model_path: str, policy: str) -> None:
    lone = make_lone(tiny_model_path, policy, 40)
    lone.add("held? runs", tokens_of(1, PROMPT), 100)
    lone.add("held? waits", tokens_of(2, PROMPT), 100)
    while "held? runs" in lone.scheduler.requests:
        step = lone.step()
        assert "held? waits" not in step.scheduled
        if not step.scheduled or lone.scheduler.requests["held? runs"].num_output_tokens == 10:
            lone.abort("held? waits")
            lone.abort("held? runs")
    lone.step()
    assert count_alive() == 0


def test_a_pinned_turn_leaves_no_more_behind_for_a_long_prompt(tiny_model_path: str) -> None:
    lone = make_unwatched(tiny_model_path, "agentcache")
    serve(lone, 0, 20)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    serve(lone, 20, 40)
    gc.collect()
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # A request of such a prompt has about 30 kB; a turn's record about 3, the log of its evicted blocks as much.
    assert (grown - before) / 40 < 14_000
