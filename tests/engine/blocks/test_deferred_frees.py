"""With a KV connector vLLM frees blocks when the step that writes them is over, and brings KV before admission."""

from __future__ import annotations

from freed_blocks import freed as freed  # noqa: PLC0414 (a fixture)
from lone_scheduler import BLOCK_SIZE, LoneScheduler
from steered_scheduler import SEARCH, do_turn_in_no_time, learn_that_tools_are_fast, make_lone, tokens_of
from vllm.v1.request import RequestStatus

from agentcache._evictor import FreeContext
from agentcache.engine.jobs.finish_classes import OVER, PREEMPTED, UNKNOWN
from agentcache.engine.rpc.core_calls import release


def make_deferring(model_path: str, blocks: int = 64) -> LoneScheduler:
    lone = make_lone(model_path, "agentcache", blocks=blocks, in_flight=2)
    learn_that_tools_are_fast(lone)
    lone.scheduler.defer_block_free = True
    return lone


def finish(lone: LoneScheduler, name: str) -> int:
    """How many blocks of the request are yet to be freed when it is over; two more steps free them."""
    while lone.scheduler.requests[name].num_output_tokens < 4:
        lone.step()
    # At a stop token, when the next step is under way.
    lone.scheduler.finish_requests(name, RequestStatus.FINISHED_STOPPED)
    waiting = lone.scheduler.frees.count_held().total()
    lone.scheduler.check_integrity()
    return waiting


def test_blocks_freed_late_are_learnt_as_their_jobs(tiny_model_path: str, freed: list[tuple[FreeContext, int]]) -> None:
    lone = make_deferring(tiny_model_path)
    freed.clear()
    lone.add("other", tokens_of(9, 60), output_tokens=40, calls=())
    lone.add("mine", tokens_of(1, 100), output_tokens=40, calls=(SEARCH,), session_id="mine")
    assert finish(lone, "mine") == 7
    assert freed == []
    for _ in range(2):
        lone.step()
    ((context, blocks),) = freed
    job = lone.scheduler.tracker.runtime.jobs.get("mine")
    assert (context.job, blocks) == (job.number, 6)
    assert context.finish_class not in (UNKNOWN, PREEMPTED, OVER)
    (pin,) = lone.scheduler.tracker.pins
    assert (context.pin, lone.scheduler.tracker.pins.blocks_left(pin)) == (pin.number, 6)
    lone.scheduler.check_integrity()


def test_a_pin_that_ended_before_its_blocks_are_freed_stays_so(
    tiny_model_path: str, freed: list[tuple[FreeContext, int]]
) -> None:
    lone = make_deferring(tiny_model_path)
    freed.clear()
    lone.add("other", tokens_of(9, 60), output_tokens=40, calls=())
    lone.add("mine", tokens_of(1, 100), output_tokens=40, calls=(SEARCH,), session_id="mine")
    finish(lone, "mine")
    assert release(lone.scheduler.tracker, "mine")
    for _ in range(2):
        lone.step()
    ((context, _),) = freed
    assert context.pin is None
    assert lone.scheduler.tracker.pins.blocks == 0
    lone.scheduler.check_integrity()


def test_no_block_is_lost_while_frees_are_deferred(tiny_model_path: str) -> None:
    lone = make_deferring(tiny_model_path, blocks=50)
    for number in range(12):
        lone.add(f"{number}", tokens_of(number % 4, 100 + 9 * number), output_tokens=30, calls=(SEARCH,))
        for _ in range(7):
            lone.step()
            lone.scheduler.check_integrity()
        if number % 5 == 4:
            lone.abort(f"{number}")
    for _ in range(400):
        lone.step()
    assert lone.idle
    assert not lone.scheduler.frees.count_held()
    assert lone.pool.get_num_free_blocks() == 49


def test_a_request_whose_kv_has_arrived_takes_no_pinned_blocks(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, "continuum-code", blocks=41, pins={"budget": 1.0})
    lone.shadow = None  # It would find that nobody has loaded anything.
    learn_that_tools_are_fast(lone)
    lone.add("runs", tokens_of(8, 10), output_tokens=60, calls=())
    lone.step()
    do_turn_in_no_time(lone, "pinned", tokens_of(1, 12 * BLOCK_SIZE), calls=(SEARCH,), session_id="pinned")
    scheduler = lone.scheduler
    lone.add("loaded", tokens_of(2, 25 * BLOCK_SIZE), output_tokens=2, calls=())
    lone.add("large", tokens_of(3, 25 * BLOCK_SIZE), output_tokens=2, calls=())
    request = scheduler.requests["loaded"]
    # As when a connector has loaded all but the last block.
    assert scheduler.kv_cache_manager.allocate_slots(request, 24 * BLOCK_SIZE) is not None
    request.num_computed_tokens = 24 * BLOCK_SIZE
    scheduler.waiting.remove_request(request)
    scheduler.kv_holding_waiting.add_request(request)
    step = lone.step()
    assert "loaded" in step.scheduled
    assert scheduler.requests["large"].status == RequestStatus.WAITING, "it would take what is pinned"
