"""Shares by tenant in vLLM's own scheduler: the order of turns, limits on jobs, and which pins are evicted first."""

from __future__ import annotations

from typing import Any
from unittest import mock

from hand_clock import Clock
from lone_scheduler import BLOCK_SIZE, LoneScheduler, make_config, make_scheduler
from steered_scheduler import SEARCH, do_turn_in_no_time, make_lone, make_patient, run_until_idle, tokens_of

from agentcache._evictor import FreeContext
from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.jobs.tracker import JobTracker
from agentcache.engine.vllm.types import Request
from tool_runtime.learning.job_blocks import MOST_AWAY_S

SMALL, LARGE = "small", "large"
ALIKE = {"known": {SMALL: {}, LARGE: {}}}


def ask(lone: LoneScheduler, name: str, tenant: str, blocks: int, **options: Any) -> None:
    number = sum(map(ord, name))
    options = {"output_tokens": 2, "calls": (), "session_id": name, "cache_salt": tenant, **options}
    lone.add(name, tokens_of(number, blocks * BLOCK_SIZE), **options)


def list_admitted(lone: LoneScheduler) -> list[str]:
    """The requests in the order in which they began to run."""
    begun: dict[str, None] = {}
    while not lone.idle:
        lone.scheduler.clock.now_s += 1.0
        begun |= dict.fromkeys(lone.step().scheduled)
        lone.scheduler.check_integrity()
    return list(begun)


def test_the_tenant_that_took_least_goes_next(tiny_model_path: str) -> None:
    # One request at a time, and a prompt takes a step.
    lone = make_lone(tiny_model_path, "agentcache", engine={"max_num_seqs": 1}, tenants=ALIKE)
    for number in range(6):
        ask(lone, f"L{number}", LARGE, blocks=5)
    lone.step()
    for number in range(3):
        ask(lone, f"S{number}", SMALL, blocks=5)
    order = "".join(name[0] for name in list_admitted(lone))
    assert order in ("LSLSLSLLL", "LSSLSLLLL")


def test_without_shares_the_order_is_as_it_was(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, "agentcache", engine={"max_num_seqs": 1})
    for name, tenant in (("L0", LARGE), ("L1", LARGE), ("S0", SMALL)):
        ask(lone, name, tenant, blocks=5)
    assert list_admitted(lone) == ["L0", "L1", "S0"]


def make_limited(model_path: str) -> LoneScheduler:
    config = make_config(model_path, SCHEDULER_CLASS, tenants={"known": {LARGE: {"limit": 2}}})
    # From the beginning: the job table's clock never goes back.
    return LoneScheduler(make_scheduler(config, 200, clock=Clock()))


def test_no_more_jobs_begin_than_a_tenant_may_have(tiny_model_path: str) -> None:
    lone = make_limited(tiny_model_path)
    for name, tenant in (("a", LARGE), ("b", LARGE), ("c", LARGE), ("d", SMALL)):
        ask(lone, name, tenant, blocks=2, output_tokens=9)
    while "b" in lone.scheduler.requests:
        lone.scheduler.clock.now_s += 1.0
        lone.step()
        running = {request.request_id for request in lone.scheduler.running}
        assert "c" not in running or "a" not in lone.scheduler.requests
    assert list_admitted(lone)[-1] == "c"
    (job,) = (job for name, job in lone.scheduler.tracker.stats.jobs.items() if job.session == "c")
    assert job.turns[0].waits["limit"] > 0


def test_a_job_whose_tool_runs_is_under_way_for_a_time(tiny_model_path: str) -> None:
    lone = make_limited(tiny_model_path)
    for name in "ab":
        ask(lone, name, LARGE, blocks=2, calls=(SEARCH,))
    run_until_idle(lone)
    # No request waits while nothing runs.
    ask(lone, "other", SMALL, blocks=2, output_tokens=400)
    lone.step()
    ask(lone, "c", LARGE, blocks=2)
    assert "c" not in lone.step().scheduled
    lone.scheduler.clock.now_s += MOST_AWAY_S + 1.0
    lone.step()
    assert "c" in {request.request_id for request in lone.scheduler.running}


def do_pinned(lone: LoneScheduler, name: str) -> None:
    """A turn of 17 blocks whose tool runs on. Its tenant is the first word of the name."""
    prompt = tokens_of(sum(map(ord, name)), 16 * BLOCK_SIZE + 8)
    tenant = name.partition(" ")[0]
    do_turn_in_no_time(lone, name, prompt, calls=(SEARCH,), session_id=name, cache_salt=tenant)
    lone.scheduler.clock.now_s += 1.0


def make_full(model_path: str, **knobs: Any) -> LoneScheduler:
    """Of 80 blocks the large tenant's pins have most; the small one's pin is the latest, and so the first to go."""
    # Its turns wait for all pins, whatever that costs.
    lone = make_patient(model_path, "continuum-code", 81, **knobs)
    for name in ("large 1", "large 2", "large 3", "small 1"):
        do_pinned(lone, name)
    assert lone.scheduler.tracker.pins.blocks >= 4 * 16
    return lone


def list_left(lone: LoneScheduler) -> dict[str, int]:
    pins = lone.scheduler.tracker.pins
    return {pin.owner: pins.blocks_left(pin) for pin in pins}


def test_who_is_beyond_its_share_loses_its_pins_first(tiny_model_path: str) -> None:
    for knobs, kept in (({"tenants": ALIKE}, True), ({}, False)):
        lone = make_full(tiny_model_path, **knobs)
        before = list_left(lone)["small 1"]
        do_turn_in_no_time(lone, "new", tokens_of(5, 30 * BLOCK_SIZE), session_id="new", cache_salt=LARGE)
        assert (list_left(lone).get("small 1") == before) is kept


def test_what_was_borrowed_is_given_back_in_one_step(tiny_model_path: str) -> None:
    for knobs, admitted in (({"tenants": ALIKE}, True), ({}, False)):
        lone = make_full(tiny_model_path, **knobs)
        # Something runs, so that others wait for pins.
        ask(lone, "large 9", LARGE, blocks=2, output_tokens=99)
        lone.step()
        ask(lone, "small 9", SMALL, blocks=20)
        lone.step()
        assert ("small 9" in {request.request_id for request in lone.scheduler.running}) is admitted
        lone.scheduler.check_integrity()


def test_what_is_left_beyond_a_share_is_told_as_worth_less(tiny_model_path: str) -> None:
    factors = {}
    on_free = JobTracker.on_free

    def note(tracker: JobTracker, request: Request, *given: Any, **named: Any) -> FreeContext:
        context = on_free(tracker, request, *given, **named)
        factors[request.request_id] = context.factor
        return context

    with mock.patch.object(JobTracker, "on_free", note):
        lone = make_lone(tiny_model_path, "agentcache", 41, tenants=ALIKE)
        ask(lone, "large", LARGE, blocks=24, output_tokens=9)
        ask(lone, "small", SMALL, blocks=2, output_tokens=20)
        run_until_idle(lone)
        ask(lone, "alone", LARGE, blocks=24, output_tokens=9)
        run_until_idle(lone)
    assert factors == {"large": 0.1, "small": 1.0, "alone": 1.0}


def test_one_tenant_alone_may_have_all_of_the_cache(tiny_model_path: str) -> None:
    lone = make_patient(tiny_model_path, "agentcache", 81, tenants=ALIKE)
    for number in range(4):
        do_pinned(lone, f"large {number}")
    lone.step()
    assert lone.scheduler.tracker.tenants.beyond == frozenset()
    assert lone.scheduler.tracker.pins.blocks >= 4 * 16
