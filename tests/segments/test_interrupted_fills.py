"""Whatever ends a fill row early, every reply stays that of a cold engine and every block comes back."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
from live_engine import BLOCK, LiveEngine, Reply, assert_same, make_prompt

pytestmark = pytest.mark.engine

PROMPT = make_prompt(seed=1, tokens=20 * BLOCK + 7)
GAP = range(2, 10)


@pytest.fixture(scope="module")
def expected(cold: LiveEngine) -> Reply:
    return cold.ask(PROMPT)


@pytest.fixture(scope="module")
def shared_engine(tiny_model_path: str, cold: LiveEngine) -> LiveEngine:  # noqa: ARG001 (made first)
    """Its steps are a quarter of the gap; its cache holds two such prompts."""
    return LiveEngine(tiny_model_path, max_num_batched_tokens=2 * BLOCK, num_gpu_blocks_override=46)


@pytest.fixture
def engine(shared_engine: LiveEngine) -> Iterator[LiveEngine]:
    """With a gap in the prompt's blocks."""
    assert shared_engine.reset()
    shared_engine.ask(PROMPT)
    shared_engine.forget(PROMPT, GAP)
    yield shared_engine
    assert not shared_engine.scheduler.gap_filler.rows
    assert not shared_engine.scheduler.requests
    assert shared_engine.pool.get_num_free_blocks() == 45


def start_fill(engine: LiveEngine) -> str:
    """The request's name. Two of its gap's eight blocks are computed."""
    name = engine.add(PROMPT)
    engine.step()
    (row,) = engine.scheduler.gap_filler.rows.values()
    assert row.request.num_computed_tokens == 4 * BLOCK
    return name


def test_parent_is_aborted(engine: LiveEngine, expected: Reply) -> None:
    engine.abort(start_fill(engine))
    assert not engine.scheduler.running
    assert not engine.scheduler.gap_filler.holds.count_held()
    reply = engine.ask(PROMPT)
    assert_same(reply, expected)
    assert reply.cached == 14 * BLOCK, "two blocks of the gap had been computed"


def test_parent_is_aborted_as_another_waits_behind_the_same_gap(engine: LiveEngine, expected: Reply) -> None:
    first = start_fill(engine)
    second = engine.add(PROMPT)
    engine.step()
    engine.abort(first)
    engine.finish()
    assert_same(engine.reply(second), expected)


def test_cache_is_not_reset_under_a_fill_row(engine: LiveEngine, expected: Reply) -> None:
    name = start_fill(engine)
    assert not engine.reset()
    engine.finish()
    assert_same(engine.reply(name), expected)
    assert_same(engine.ask(PROMPT), expected)


def test_cache_and_running_requests_are_reset(engine: LiveEngine, expected: Reply) -> None:
    name = start_fill(engine)
    assert engine.reset(running=True)
    assert not engine.scheduler.gap_filler.rows
    engine.finish()
    reply = engine.reply(name)
    assert_same(reply, expected)
    assert reply.cached == 0
    engine.forget(PROMPT, GAP)
    before = engine.fill_tokens
    assert_same(engine.ask(PROMPT), expected)
    assert engine.fill_tokens - before == len(GAP) * BLOCK, "gaps are filled after a reset, too"


def test_fill_row_is_preempted_and_planned_anew(engine: LiveEngine, expected: Reply) -> None:
    name = start_fill(engine)
    (row,) = engine.scheduler.gap_filler.rows.values()
    # Somebody else takes all that is free, as running requests do when they grow.
    taken = engine.pool.get_new_blocks(engine.pool.get_num_free_blocks())
    # The check would complain about blocks without an owner.
    with mock.patch.object(engine.scheduler, "check_integrity"):
        engine.step()
    assert row.request.request_id not in engine.scheduler.requests
    engine.pool.free_blocks(taken)
    engine.finish()
    reply = engine.reply(name)
    assert_same(reply, expected)
    assert reply.cached == 12 * BLOCK, "all of the gap was computed for this request, once or twice"
    assert_same(engine.ask(PROMPT), expected)


def test_lost_holds_are_filled_again_and_counted_once(engine: LiveEngine, expected: Reply) -> None:
    name = start_fill(engine)
    while engine.scheduler.gap_filler.rows:
        engine.step()
    lost = list(engine.scheduler.gap_filler.holds.count_held())
    assert lost, "the fill row has ended, its parent waits"
    assert engine.scheduler.gap_filler.release_holds()
    engine.forget(PROMPT, range(2, 4))
    engine.finish()
    reply = engine.reply(name)
    assert_same(reply, expected)
    assert reply.cached == 12 * BLOCK


def test_growing_requests_win_blocks_back_from_a_waiting_parent(engine: LiveEngine, cold: LiveEngine) -> None:
    others = [make_prompt(seed, tokens=3 * BLOCK - 4) for seed in (5, 6, 7)]
    cold_replies = [cold.ask(prompt, 200) for prompt in others]
    names = [engine.add(prompt, 200) for prompt in others]
    for _ in range(8):
        engine.step()
    expected = cold.ask(PROMPT, 60)
    late = engine.add(PROMPT, 60)
    engine.finish()
    assert_same(engine.reply(late), expected)
    for name, cold_reply in zip(names, cold_replies, strict=True):
        assert_same(engine.reply(name), cold_reply)
