"""A prefill instance computes prompts and one token of each reply; a decode instance gets them by a KV connector."""

from __future__ import annotations

from typing import Any

import pytest
from freed_blocks import freed as freed  # noqa: PLC0414 (a fixture)
from grouped_scheduler import FULL, WINDOW
from grouped_scheduler import make_lone as make_grouped
from handing_connector import CONNECTOR, DECODE_ELSEWHERE, PREFILLED_ELSEWHERE, tell_received, tell_sent
from lone_scheduler import LoneScheduler
from steered_scheduler import SEARCH, learn_that_tools_are_fast, make_lone, run_until_idle, tokens_of
from vllm import SamplingParams
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.request import Request, RequestStatus

from agentcache._evictor import SHARED_CLASS, FreeContext
from agentcache.engine.jobs.finish_classes import OVER, PREEMPTED, UNKNOWN
from agentcache.engine.replies.ended_reply import is_handed_over, is_whole
from agentcache.engine.rpc.job_views import count_runtime, view_session
from agentcache.engine.views import JobView
from tool_runtime.learning.tool_key import ELSEWHERE

Freed = list[tuple[FreeContext, int]]
PROMPT = tokens_of(1, 100)
# Of requests that are no whole turns, or the last of their jobs.
NO_TURNS = (UNKNOWN, PREEMPTED, OVER, SHARED_CLASS)
# As LMCache's proxy names the decode instance.
RECEIVER = {"req_id": "1", "receiver_host": "decoder", "receiver_init_port": [7300], "receiver_alloc_port": [7400]}


def make_instance(model_path: str, *, learned: bool = True) -> LoneScheduler:
    lone = make_lone(model_path, "agentcache", engine={"kv_transfer_config": CONNECTOR})
    # It would find that nobody has loaded anything.
    lone.shadow = None
    if learned:
        learn_that_tools_are_fast(lone, ELSEWHERE)
    return lone


def ask(lone: LoneScheduler, name: str, prompt: list[int], wanted: dict[str, Any], **options: Any) -> None:
    lone.add(name, prompt, **{"output_tokens": 1, **options})
    lone.scheduler.requests[name].kv_transfer_params = dict(wanted)


def prefill(lone: LoneScheduler, name: str, prompt: list[int], session: str | None = "mine") -> None:
    """Until the reply's token is there; the blocks are yet to be read."""
    ask(lone, name, prompt, DECODE_ELSEWHERE, session_id=session)
    while not lone.scheduler.requests[name].is_finished():
        lone.step()
    lone.scheduler.check_integrity()


def view(lone: LoneScheduler, session: str = "mine") -> JobView:
    (job,) = view_session(lone.scheduler.tracker, session)
    return job


def test_a_prompt_handed_over_is_a_turn_at_once(tiny_model_path: str) -> None:
    lone = make_instance(tiny_model_path)
    prefill(lone, "one", PROMPT)
    job = view(lone)
    assert [(turn.status, turn.tools) for turn in job.turns] == [("finished", (ELSEWHERE.tool,))]
    assert (job.running, job.waits_for, job.turn_count, job.call_count) == (0, (ELSEWHERE.tool,), 1, 0)
    # Nobody knows whether it was the answer.
    outputs = EngineCoreOutputs(finished_requests={"one"})
    lone.scheduler.tracker.stepped({0: outputs})
    assert outputs.finished_requests == {"one"}
    assert count_runtime(lone.scheduler.tracker).answer_latency_s.count == 0


def test_blocks_read_late_are_those_of_their_turn(tiny_model_path: str, freed: Freed) -> None:
    lone = make_instance(tiny_model_path)
    prefill(lone, "one", PROMPT)
    freed.clear()
    lone.scheduler.clock.now_s += 0.1
    lone.step()
    assert freed == []
    tell_sent(lone.scheduler, "one")
    ((context, blocks),) = freed
    tracker = lone.scheduler.tracker
    assert (context.job, blocks) == (tracker.runtime.jobs.get("mine").number, 6)
    assert context.finish_class not in NO_TURNS
    (pin,) = tracker.pins
    assert (context.pin, tracker.pins.blocks_left(pin)) == (pin.number, 6)
    assert "one" not in lone.scheduler.requests
    lone.scheduler.check_integrity()


def test_blocks_that_the_connector_has_copied_are_pinned_at_once(tiny_model_path: str, freed: Freed) -> None:
    """LMCache's has what it sends before the reply's token, and says how to go on."""
    lone = make_instance(tiny_model_path)
    ask(lone, "one", PROMPT, {"disagg_spec": RECEIVER}, session_id="mine")
    while "one" in lone.scheduler.requests:
        lone.step()
    ((context, blocks),) = freed
    (pin,) = lone.scheduler.tracker.pins
    assert (context.pin, blocks, lone.scheduler.tracker.pins.blocks_left(pin)) == (pin.number, 6, 6)
    assert [(turn.status, turn.tools) for turn in view(lone).turns] == [("finished", (ELSEWHERE.tool,))]
    lone.scheduler.check_integrity()


def test_the_time_until_the_job_is_back_is_learnt(tiny_model_path: str) -> None:
    lone = make_instance(tiny_model_path, learned=False)
    prefill(lone, "one", PROMPT)
    lone.scheduler.clock.now_s += 3.0
    tell_sent(lone.scheduler, "one")
    lone.scheduler.clock.now_s += 4.0
    prefill(lone, "two", [*PROMPT, *tokens_of(2, 30)])
    history = lone.scheduler.tracker.runtime.durations.history(ELSEWHERE)
    assert (history.tool_count, history.tool_mean_s) == (1, 7.0)
    assert view(lone).turns[1].cached_tokens == 96


def test_a_job_may_be_back_before_its_blocks_were_read(tiny_model_path: str, freed: Freed) -> None:
    lone = make_instance(tiny_model_path)
    prefill(lone, "one", PROMPT)
    prefill(lone, "two", [*PROMPT, *tokens_of(2, 30)])
    pins = lone.scheduler.tracker.pins
    assert (dict(pins.ended), view(lone).turns[1].cached_tokens) == ({"returned": 1}, 96)
    freed.clear()
    # What both turns used is the second's.
    tell_sent(lone.scheduler, "one")
    assert freed == []
    tell_sent(lone.scheduler, "two")
    (pin,) = pins
    assert [(context.pin, blocks) for context, blocks in freed] == [(pin.number, 8)]
    lone.scheduler.check_integrity()


@pytest.mark.parametrize(
    ("wanted", "max_tokens", "status", "is_ours"),
    [
        (DECODE_ELSEWHERE, 1, RequestStatus.FINISHED_LENGTH_CAPPED, True),
        (DECODE_ELSEWHERE, 1, RequestStatus.FINISHED_STOPPED, True),
        (DECODE_ELSEWHERE, 1, RequestStatus.FINISHED_ABORTED, False),
        (DECODE_ELSEWHERE, 2, RequestStatus.FINISHED_LENGTH_CAPPED, False),
        (PREFILLED_ELSEWHERE, 1, RequestStatus.FINISHED_LENGTH_CAPPED, False),
        ("do_remote_decode", 1, RequestStatus.FINISHED_LENGTH_CAPPED, False),
        ({"ret_first_tok": True, "disagg_spec": RECEIVER}, 1, RequestStatus.FINISHED_LENGTH_CAPPED, True),
        ({"ret_first_tok": True, "disagg_spec": RECEIVER}, 2, RequestStatus.FINISHED_LENGTH_CAPPED, False),
        ({"ret_first_tok": True}, 1, RequestStatus.FINISHED_LENGTH_CAPPED, False),
        (None, 1, RequestStatus.FINISHED_LENGTH_CAPPED, False),
    ],
)
def test_which_replies_are_decoded_elsewhere(
    wanted: Any, max_tokens: int, status: RequestStatus, is_ours: bool
) -> None:
    params = SamplingParams(max_tokens=max_tokens, extra_args={"kv_transfer_params": wanted})
    request = Request("one", PROMPT, params, None)
    request.status = status
    assert is_handed_over(request) is is_whole(request) is is_ours


def test_windows_of_a_prompt_handed_over_are_kept(tiny_model_path: str, freed: Freed) -> None:
    engine = {"kv_transfer_config": CONNECTOR}
    lone = make_grouped(tiny_model_path, [WINDOW, FULL], engine=engine, policy="agentcache", pins={"enabled": False})
    prefill(lone, "one", tokens_of(1, 12 * 16 + 5))
    # Others come and go, and their blocks with them.
    lone.add("other", tokens_of(5, 200), output_tokens=9, calls=())
    while "other" in lone.scheduler.requests:
        lone.step()
        lone.scheduler.check_integrity()
    freed.clear()
    tell_sent(lone.scheduler, "one")
    lone.scheduler.check_integrity()
    kept = sum(blocks for context, blocks in freed if context.finish_class not in NO_TURNS)
    assert kept == 12 + 4, "all blocks of full attention, and the last window's"
    assert lone.pool.get_num_free_blocks() == 100


def receive(lone: LoneScheduler, name: str, prompt: list[int], **options: Any) -> None:
    """Until the prompt has arrived."""
    ask(lone, name, prompt, PREFILLED_ELSEWHERE, session_id="mine", **options)
    lone.step()
    assert lone.scheduler.requests[name].status == RequestStatus.WAITING_FOR_REMOTE_KVS
    lone.scheduler.check_integrity()
    tell_received(lone.scheduler, name)


def test_a_turn_whose_prompt_arrives_is_read_as_usual(tiny_model_path: str) -> None:
    lone = make_instance(tiny_model_path)
    receive(lone, "one", PROMPT, output_tokens=20, calls=(SEARCH,))
    (known,) = [step.finished["one"] for step in run_until_idle(lone) if step.finished]
    lone.scheduler.clock.now_s += 3.0
    receive(lone, "two", [*known, *tokens_of(2, 30)], output_tokens=20, calls=())
    run_until_idle(lone)
    job = view(lone)
    assert [(turn.status, turn.tools) for turn in job.turns] == [("finished", ("search",)), ("finished", ())]
    # The last token's is computed here, for the next token.
    assert [(turn.cached_tokens, turn.recomputed_tokens) for turn in job.turns] == [(100, 0), (150, 0)]
    assert count_runtime(lone.scheduler.tracker).tools["search"].seconds == 3.0
    assert lone.scheduler.gap_filler is None


def test_a_turn_aborted_while_its_prompt_arrives_is_over(tiny_model_path: str) -> None:
    lone = make_instance(tiny_model_path)
    ask(lone, "one", PROMPT, PREFILLED_ELSEWHERE, session_id="mine", output_tokens=9)
    lone.step()
    lone.abort("one")
    assert [(turn.status, turn.first_token_s) for turn in view(lone).turns] == [("aborted", None)]
    assert (view(lone).running, lone.pool.get_num_free_blocks()) == (0, 63 - 7)
    lone.scheduler.check_integrity()
    tell_received(lone.scheduler, "one")
    assert (lone.pool.get_num_free_blocks(), lone.scheduler.tracker.pins.began) == (63, 0)


def test_an_arrived_prompt_is_not_taken_for_a_common_one(tiny_model_path: str, freed: Freed) -> None:
    lone = make_grouped(tiny_model_path, [WINDOW, FULL], engine={"kv_transfer_config": CONNECTOR}, policy="agentcache")
    receive(lone, "one", tokens_of(1, 200), output_tokens=5, calls=(SEARCH,))
    freed.clear()
    run_until_idle(lone)
    assert freed
    assert all(context.finish_class != SHARED_CLASS for context, _ in freed)
