"""Jobs, pins and order on vLLM's scheduler without a worker: whatever happens, no block is lost and work goes on."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lone_scheduler import BLOCK_SIZE
from sizes import pick_size
from steered_scheduler import (
    SEARCH,
    STEERED,
    Life,
    do_turn,
    do_turn_in_no_time,
    learn_that_tools_are_fast,
    make_lone,
    run_until_idle,
    tokens_of,
)

from agentcache.engine.rpc.core_calls import release
from agentcache.engine.rpc.job_views import view_session

# Those of `Life`. One of them has so few jobs that others of it wait.
TENANTS = {"known": {"one": {"id": "tenant 0", "weight": 2}, "two": {"id": "tenant 1", "limit": 2}}}


@pytest.mark.parametrize("policy", STEERED)
def test_no_block_is_ever_lost_and_every_pin_ends_with_a_cause(tiny_model_path: str, policy: str) -> None:
    begun = 0

    @settings(max_examples=pick_size(1, 10))
    @given(seed=st.integers(0, 1_000_000), blocks=st.integers(34, 90), in_flight=st.sampled_from([1, 2]))
    @example(seed=36, blocks=36, in_flight=1)
    @example(seed=80, blocks=80, in_flight=2)
    def live(seed: int, blocks: int, in_flight: int) -> None:
        nonlocal begun
        knobs = {"tenants": TENANTS, "lifespan_s": 20}
        life = Life(make_lone(tiny_model_path, policy, blocks, in_flight, **knobs), random.Random(seed))
        for _ in range(pick_size(200, 700)):
            life.step()
        life.drain()
        pins = life.lone.scheduler.tracker.pins
        begun += pins.began
        assert life.lone.scheduler.reset_prefix_cache()
        assert len(pins) == 0
        assert pins.ended.total() == pins.began
        assert life.lone.pool.get_num_free_blocks() == blocks - 1

    live()
    # In all of them together: now and then none pays in a whole life.
    assert begun > 0


@pytest.mark.parametrize("policy", STEERED)
def test_a_pinned_turn_is_hit_whole_though_others_wanted_it(tiny_model_path: str, policy: str) -> None:
    lone = make_lone(tiny_model_path, policy, blocks=44, pins={"budget": 1.0})
    learn_that_tools_are_fast(lone)
    known = do_turn(lone, "one", tokens_of(1, 160), (SEARCH,), session_id="job")
    lone.scheduler.clock.now_s += 0.5
    assert len(lone.scheduler.tracker.pins) == 1
    for number in range(5):
        do_turn_in_no_time(lone, f"other {number}", tokens_of(50 + number, 320))
    lone.scheduler.clock.now_s += 0.1
    lone.add("two", [*known, *tokens_of(2, 8)], output_tokens=2, calls=(), session_id="job")
    step = lone.step()
    assert step.hit_tokens == {"two": (len(known) - 1) // BLOCK_SIZE * BLOCK_SIZE}
    run_until_idle(lone)
    assert lone.scheduler.tracker.pins.ended["returned"] > 0


@pytest.mark.parametrize("fills_gaps", [True, False])
def test_a_pin_loses_first_what_is_worth_least_to_its_engine(tiny_model_path: str, fills_gaps: bool) -> None:
    lone = make_lone(tiny_model_path, "agentcache", 44, segments={"enabled": fills_gaps}, pins={"budget": 1.0})
    assert (lone.scheduler.gap_filler is not None) is fills_gaps
    learn_that_tools_are_fast(lone)
    prompt = tokens_of(1, 20 * BLOCK_SIZE)
    do_turn_in_no_time(lone, "one", prompt, calls=(SEARCH,), session_id="job")
    ids = lone.find_blocks(prompt)
    pinned = [block for block in lone.scheduler.evictor.order(lone.scheduler.clock()) if block in ids]
    assert pinned == (ids if fills_gaps else ids[::-1])


@pytest.mark.parametrize("policy", STEERED)
def test_work_goes_on_when_every_block_is_pinned(tiny_model_path: str, policy: str) -> None:
    lone = make_lone(tiny_model_path, policy, blocks=41, pins={"budget": 1.0})
    learn_that_tools_are_fast(lone)
    for number in range(4):
        prompt = tokens_of(number, 10 * BLOCK_SIZE - 1)
        do_turn_in_no_time(lone, f"{number}", prompt, calls=(SEARCH,), session_id=f"job {number}")
    pins = lone.scheduler.tracker.pins
    assert pins.blocks == lone.pool.get_num_free_blocks() == 40
    for number in range(3):
        do_turn_in_no_time(lone, f"new {number}", tokens_of(90 + number, 400))
    # No time passes, so no pin has expired.
    assert pins.ended["pressure"] > 0
    assert pins.ended["expired"] == 0


def test_pins_keep_to_the_budget_and_the_cheapest_give_way(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, "agentcache", blocks=101, pins={"budget": 0.15})
    learn_that_tools_are_fast(lone)
    pins = lone.scheduler.tracker.pins
    assert pins.budget_blocks == 15
    do_turn_in_no_time(lone, "one", tokens_of(1, 60), calls=(SEARCH,), session_id="a")
    assert pins.blocks == 3
    do_turn_in_no_time(lone, "two", tokens_of(2, 300), calls=(SEARCH,), session_id="b")
    lone.step()
    assert pins.blocks == 15
    assert pins.blocks_left(next(pin for pin in pins if pin.owner == "two")) >= 12


def test_pins_end_with_their_time_or_when_the_client_says_so(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, "continuum-code")
    do_turn_in_no_time(lone, "one", tokens_of(1, 100), calls=(SEARCH,), session_id="a")
    do_turn_in_no_time(lone, "two", tokens_of(2, 100), calls=(SEARCH,), session_id="b")
    tracker = lone.scheduler.tracker
    assert release(tracker, "b")
    assert not release(tracker, "unknown")
    assert dict(tracker.pins.ended) == {"released": 1}
    lone.scheduler.clock.now_s += 2.5
    lone.step()
    assert dict(tracker.pins.ended) == {"released": 1, "expired": 1}
    (view,) = view_session(tracker, "a")
    assert [(pin.cause, pin.blocks_left) for pin in view.pins] == [("expired", 0)]


def test_cut_off_and_aborted_turns_are_not_pinned(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, "continuum-code")
    lone.add("cut off", tokens_of(1, 100), output_tokens=5, session_id="a")
    run_until_idle(lone)
    lone.add("aborted", tokens_of(2, 100), output_tokens=50, calls=(SEARCH,), session_id="b")
    lone.step()
    lone.abort("aborted")
    run_until_idle(lone)
    tracker = lone.scheduler.tracker
    assert (len(tracker.pins), tracker.pins.began) == (0, 0)
    assert [view.turns[0].status for session in "ab" for view in view_session(tracker, session)] == [
        "cut off",
        "aborted",
    ]


@pytest.mark.parametrize(("patience_s", "order"), [(1000, ["two", "new"]), (20, ["new", "two"])])
def test_returning_jobs_go_before_new_ones_that_have_patience(
    tiny_model_path: str, patience_s: float, order: list[str]
) -> None:
    lone = make_lone(tiny_model_path, "agentcache", blocks=30, order={"patience_s": patience_s})
    known = do_turn(lone, "one", tokens_of(1, 100), (SEARCH,), session_id="old")
    lone.add("running", tokens_of(9, 300), 60, calls=(), session_id="running")
    lone.step()
    lone.add("new", tokens_of(3, 200), 30, calls=(), session_id="new")
    lone.scheduler.clock.now_s += 5
    lone.add("two", [*known, *tokens_of(2, 60)], 30, calls=(), session_id="old")
    assert [name for step in run_until_idle(lone) for name in step.finished] == ["running", *order]
