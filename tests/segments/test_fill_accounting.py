"""A filled gap counts as computed, and no counter, gauge or reply knows of fill rows. Over HTTP: see tests/server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from live_engine import BLOCK, LiveEngine, make_prompt

pytestmark = pytest.mark.engine

PROMPT = make_prompt(seed=1, tokens=20 * BLOCK + 7)
GAP = range(2, 10)


@pytest.fixture(scope="module")
def shared_engine(take_engine: Callable[..., LiveEngine]) -> LiveEngine:
    """Its steps are a quarter of the gap."""
    return take_engine(max_num_batched_tokens=2 * BLOCK)


@pytest.fixture
def engine(shared_engine: LiveEngine) -> LiveEngine:
    assert shared_engine.reset()
    shared_engine.ask(PROMPT)
    shared_engine.forget(PROMPT, GAP)
    (recorder,) = shared_engine.stats
    recorder.scheduler.clear()
    recorder.iterations.clear()
    return shared_engine


def test_prefix_cache_counters_take_the_gap_for_computed(engine: LiveEngine) -> None:
    assert engine.ask(PROMPT).cached == 12 * BLOCK
    (recorder,) = engine.stats
    counted = [step.prefix_cache_stats for step in recorder.scheduler if step.prefix_cache_stats]
    assert sum(stats.requests for stats in counted) == 1
    assert sum(stats.queries for stats in counted) == len(PROMPT)
    assert sum(stats.hits for stats in counted) == 12 * BLOCK


def test_fill_rows_are_in_no_count_of_requests(engine: LiveEngine) -> None:
    engine.add(PROMPT, 5)
    seen = []
    filling = 0
    (recorder,) = engine.stats
    while engine.scheduler.requests:
        seen += engine.step()
        filling += bool(engine.scheduler.gap_filler.rows)
        running, waiting = recorder.scheduler[-1].num_running_reqs, recorder.scheduler[-1].num_waiting_reqs
        clients = [name for name in engine.scheduler.requests if "#fill-" not in name]
        assert (running + waiting, running >= 0) == (len(clients), True), "the one request waits or runs"
    assert filling, "it took more than one step to fill the gap"
    assert {output.request_id for output in seen} == {seen[-1].request_id}
    finished = [request for step in recorder.iterations for request in step.finished_requests]
    assert [request.num_prompt_tokens for request in finished] == [len(PROMPT)]
    assert sum(step.num_generation_tokens for step in recorder.iterations) == 5
    assert sum(step.num_prompt_tokens for step in recorder.iterations) == len(PROMPT)


def test_aborted_fill_rows_are_in_no_count_of_requests(engine: LiveEngine) -> None:
    name = engine.add(PROMPT, 5)
    engine.step()
    assert engine.scheduler.gap_filler.rows
    engine.abort(name)
    assert engine.ask(PROMPT[:BLOCK]).cached == 0
    (recorder,) = engine.stats
    assert [step.num_running_reqs for step in recorder.scheduler][-1] == 0
    assert min(step.num_running_reqs for step in recorder.scheduler) >= 0
