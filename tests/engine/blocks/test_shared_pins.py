"""Blocks that several requests use, a system prompt's: a pin keeps them although others come, use them and go."""

from __future__ import annotations

from typing import Any

import pytest
from lone_scheduler import BLOCK_SIZE, LoneScheduler
from steered_scheduler import (
    SEARCH,
    STEERED,
    do_turn_in_no_time,
    learn_that_tools_are_fast,
    make_lone,
    tokens_of,
)

from agentcache.engine.rpc.core_calls import release

SYSTEM = tokens_of(7, 4 * BLOCK_SIZE)
# What is not pinned is no more than the longest request may have.
BLOCKS = 40


def make(model_path: str, policy: str) -> LoneScheduler:
    lone = make_lone(model_path, policy, blocks=BLOCKS, pins={"budget": 1.0})
    learn_that_tools_are_fast(lone)
    return lone


def run(lone: LoneScheduler, name: str, prompt: list[int], **options: Any) -> tuple[list[int], int]:
    """The tokens of prompt and reply, and how many were hit, while other requests go on."""
    lone.add(name, prompt, output_tokens=4, **{"calls": (), **options})
    hits = 0
    for _ in range(200):
        lone.scheduler.clock.now_s += 0.001
        step = lone.step()
        lone.scheduler.check_integrity()
        hits = step.hit_tokens.get(name, hits)
        if name in step.finished:
            return step.finished[name], hits
    raise AssertionError(f"{name} does not end")


def take_all_that_is_not_pinned(lone: LoneScheduler) -> None:
    free = lone.pool.get_num_free_blocks() - lone.scheduler.tracker.pins.blocks
    do_turn_in_no_time(lone, "greedy", tokens_of(50, free * BLOCK_SIZE - 2))


@pytest.mark.parametrize("policy", STEERED)
@pytest.mark.parametrize("when", ["before its end", "after its end", "over its end", "not at all"])
def test_a_pinned_turn_is_hit_whole_if_another_used_its_start(tiny_model_path: str, policy: str, when: str) -> None:
    lone = make(tiny_model_path, policy)
    mine, theirs = [*SYSTEM, *tokens_of(8, 100)], [*SYSTEM, *tokens_of(9, 20)]
    if when == "before its end":
        run(lone, "other", theirs)
    if when == "over its end":
        lone.add("other", theirs, output_tokens=30, calls=())
        run(lone, "first of all", tokens_of(3, 8))
    known, _ = run(lone, "mine", mine, calls=(SEARCH,), session_id="mine")
    (pin,) = lone.scheduler.tracker.pins
    assert pin.blocks == (len(known) - 1) // BLOCK_SIZE
    if when == "over its end":
        assert lone.scheduler.tracker.pins.blocks_left(pin) == pin.blocks - len(SYSTEM) // BLOCK_SIZE
        do_turn_in_no_time(lone, "until it has ended", tokens_of(4, 8))
    if when == "after its end":
        run(lone, "other", theirs)
    assert lone.scheduler.tracker.pins.blocks_left(pin) == pin.blocks
    take_all_that_is_not_pinned(lone)
    _, hits = run(lone, "mine again", [*known, *tokens_of(2, 8)], session_id="mine")
    assert hits == pin.blocks * BLOCK_SIZE
    assert pin.end is not None
    assert pin.end.value == "returned"


@pytest.mark.parametrize("policy", STEERED)
def test_what_two_pins_keep_is_kept_until_both_have_ended(tiny_model_path: str, policy: str) -> None:
    lone = make(tiny_model_path, policy)
    known = {
        name: run(lone, name, [*SYSTEM, *tokens_of(number, 40)], calls=(SEARCH,), session_id=name)[0]
        for number, name in enumerate(("one", "two"))
    }
    pins = lone.scheduler.tracker.pins
    both = pins.blocks
    assert both < sum(pin.blocks for pin in pins), "they share the system prompt"
    run(lone, "two again", [*known["two"], *tokens_of(2, 8)], session_id="two")
    (one,) = pins
    assert pins.blocks_left(one) == one.blocks == pins.blocks
    assert release(lone.scheduler.tracker, "one")
    assert pins.blocks == 0


@pytest.mark.parametrize("policy", STEERED)
def test_a_pin_that_lost_its_own_blocks_ends_if_others_use_some(tiny_model_path: str, policy: str) -> None:
    """Its job has lost what it was to find again, and is no more to be let pass than others."""
    lone = make(tiny_model_path, policy)
    lone.add("other", [*SYSTEM, *tokens_of(9, 4)], output_tokens=60, calls=())
    run(lone, "first of all", tokens_of(3, 8))
    run(lone, "mine", [*SYSTEM, *tokens_of(8, 100)], calls=(SEARCH,), session_id="mine")
    (pin,) = lone.scheduler.tracker.pins
    assert 0 < lone.scheduler.tracker.pins.blocks_left(pin) < pin.blocks
    lone.pool.free_blocks(lone.pool.get_new_blocks(lone.pool.get_num_free_blocks()))
    lone.step()
    assert "other" in lone.scheduler.requests
    assert pin.end is not None
    assert pin.end.value == "pressure"
