"""The order of jobs and gaps: of who is held back none is filled, and what has begun goes on."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any
from unittest.mock import Mock

import pytest
from gapped_scheduler import PROMPT, drop_blocks, rows_of
from lone_scheduler import BLOCK_SIZE, LoneScheduler
from steered_scheduler import (
    SEARCH,
    do_turn_in_no_time,
    learn_that_tools_are_fast,
    make_lone,
    run_until_idle,
    tokens_of,
)
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.request import RequestStatus
from vllm.v1.structured_output.request import StructuredOutputRequest

from agentcache.policy.runtime_policy import LONGEST_S

BLOCKS = 64


def make_pinned(model_path: str, *gaps: int) -> LoneScheduler:
    """Most blocks are pinned for a job whose tool runs; of PROMPT all but `gaps` is cached. Time stands still."""
    lone = make_lone(model_path, "agentcache", BLOCKS, pins={"budget": 1.0}, tuning={"row_s": 0.0})
    learn_that_tools_are_fast(lone)
    do_turn_in_no_time(lone, "before", PROMPT, session_id="over")
    drop_blocks(lone, *gaps)
    do_turn_in_no_time(lone, "turn", tokens_of(1, 30 * BLOCK_SIZE), calls=(SEARCH,), session_id="away")
    assert lone.scheduler.tracker.pins.blocks == 30
    return lone


def test_gaps_of_a_request_that_is_held_back_wait_with_it(tiny_model_path: str) -> None:
    lone = make_pinned(tiny_model_path, 2, 9)
    lone.add("running", tokens_of(2, 30), output_tokens=50, session_id="running")
    lone.step()
    lone.add("job", PROMPT, output_tokens=30, session_id="new")
    for _ in range(2):
        assert list(rows_of(lone.step())) == ["running"]
        assert not lone.scheduler.gap_filler.holds.count_held(), "others may take what it hits"
    lone.scheduler.clock.now_s += LONGEST_S
    assert set(rows_of(lone.step())) == {"running", "job fill 0", "job fill 1", "job"}
    run_until_idle(lone)
    assert lone.scheduler.gap_filler.stats.fill_tokens == 2 * BLOCK_SIZE


def test_whoever_has_a_gap_filled_is_not_held_back_any_more(tiny_model_path: str) -> None:
    lone = make_pinned(tiny_model_path, *range(1, 12))
    # Nothing runs, so nobody is held back, and the gap needs two steps.
    lone.add("job", PROMPT, output_tokens=1, session_id="new")
    assert rows_of(lone.step()) == {"job fill 0": (96, 16)}
    assert rows_of(lone.step()) == {"job fill 0": (80, 112), "job": (12, 288)}
    run_until_idle(lone)


class DoneWhenAskedAgain(Future[Any]):
    """A grammar that another thread has compiled just after it was asked for first."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.set_result(Mock())

    def done(self) -> bool:
        self.asked += 1
        return self.asked > 1


def test_gaps_are_filled_of_who_has_a_grammar_a_moment_later(tiny_model_path: str) -> None:
    """Looked at once without it and once with it, the request would be admitted without its gaps."""
    lone = make_pinned(tiny_model_path, 2)
    lone.add("job", PROMPT, output_tokens=1, session_id="new")
    job = lone.scheduler.requests["job"]
    job.structured_output_request = StructuredOutputRequest(StructuredOutputsParams(regex="a"), DoneWhenAskedAgain())
    job.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    assert not rows_of(lone.step())
    assert set(rows_of(lone.step())) == {"job fill 0", "job"}


def test_the_order_is_asked_once_a_step_about_gaps(tiny_model_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it asked again, and did a wait end between, the request would be admitted without its gaps."""
    lone = make_pinned(tiny_model_path, 2)
    lone.add("running", tokens_of(2, 30), output_tokens=50, session_id="running")
    lone.step()
    answers = iter(["pins", None])
    find_wait = lambda request, _: next(answers) if request.request_id == "job" else None  # noqa: E731
    monkeypatch.setattr(lone.scheduler.hooks, "find_wait", (find_wait,))
    lone.add("job", PROMPT, output_tokens=1, session_id="new")
    assert list(rows_of(lone.step())) == ["running"]
    assert set(rows_of(lone.step())) == {"running", "job fill 0", "job"}
    run_until_idle(lone)


def test_nobody_behind_takes_what_a_gap_is_filled_for(tiny_model_path: str) -> None:
    """A step has room for both rows, the cache for one request."""
    engine = {"long_prefill_token_threshold": 32, "max_num_batched_tokens": 200}
    lone = make_lone(tiny_model_path, "asymcache", 31, engine=engine, tuning={"row_s": 0.0})
    do_turn_in_no_time(lone, "before", PROMPT)
    drop_blocks(lone, *range(1, 12))
    lone.add("job", PROMPT, output_tokens=1)
    lone.add("behind", tokens_of(1, 22 * BLOCK_SIZE), output_tokens=1)
    steps = run_until_idle(lone)
    assert [name for step in steps for name in step.finished] == ["job", "behind"]
    assert lone.scheduler.gap_filler.stats.fill_tokens == 11 * BLOCK_SIZE
