"""What our front end tells the engine core cannot be told by a client, and what is told wrongly ends nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from inspect import unwrap
from typing import Any

import pytest
from lone_scheduler import BLOCK_SIZE, LoneScheduler, make_config, make_scheduler
from told_requests import END
from tracked_requests import BLOCK, Tracked
from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.exceptions import VLLMValidationError
from vllm.inputs.engine import tokens_input
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.input_processor import InputProcessor

from agentcache.engine import constants
from agentcache.engine.constants import (
    ANSWER_MARK,
    CALLS_ARGUMENT,
    CONTINUES_ARGUMENT,
    FILL_MARK,
    LEFT_ARGUMENT,
    REPLY_ARGUMENT,
    ROLES_ARGUMENT,
    SCHEDULER_CLASS,
    TOOL_CHOICE_ARGUMENT,
    TOOLS_DECLARED_ARGUMENT,
)
from agentcache.engine.jobs.told_prompt import read_left, read_predecessor, read_roles
from agentcache.engine.marks import mark, marks_of
from agentcache.engine.prompt_marks import mark_prompts
from agentcache.engine.replies.forced_reply import accept_forced_replies
from agentcache.engine.vllm.compat import check_server
from agentcache.policy.runtime_policy import RuntimePolicy

OURS = sorted({value for name, value in vars(constants).items() if name.endswith("_ARGUMENT")})
# Those that a client may send where the operator allows it.
DICTATED = {REPLY_ARGUMENT, CALLS_ARGUMENT}
REQUESTS = {
    ChatCompletionRequest: {"messages": [{"role": "user", "content": "?"}]},
    CompletionRequest: {"prompt": [1]},
    ResponsesRequest: {"input": "?"},
}


TOOL = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module", autouse=True)
def _guarding() -> Iterator[None]:
    # A server in this process may have wrapped them, once for all.
    was_on = {enable: bool(enable.cache_info().currsize) for enable in (accept_forced_replies, mark_prompts)}
    with pytest.MonkeyPatch.context() as patch:
        for request_class in REQUESTS:
            patch.setattr(request_class, "to_sampling_params", unwrap(request_class.to_sampling_params))
        patch.setattr(InputProcessor, "process_inputs", unwrap(InputProcessor.process_inputs))
        for enable in (accept_forced_replies, mark_prompts):
            enable.cache_clear()
            enable()
        yield
        for enable, is_on in was_on.items():
            if not is_on:
                enable.cache_clear()


@pytest.fixture(scope="module")
def processor(tiny_model_path: str) -> InputProcessor:
    return InputProcessor(make_config(tiny_model_path, None))


def make_chat(**options: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({**REQUESTS[ChatCompletionRequest], **options})


def process(processor: InputProcessor, params: SamplingParams, request_id: str = "a") -> EngineCoreRequest:
    return processor.process_inputs(request_id, tokens_input([1, 2, 3]), params, ("generate",))


# At the door.


@pytest.mark.parametrize(
    "name", [*OURS, "agentcache_of_a_later_version", f"agentcache_{'x' * 10**6}"], ids=lambda name: name[:40]
)
def test_an_argument_with_a_name_of_ours_is_refused(processor: InputProcessor, name: str) -> None:
    with pytest.raises(VLLMValidationError, match=f"^{name[:64]}: ") as caught:
        process(processor, SamplingParams(extra_args={"theirs": 1, name: "z"}))
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("name", [name for name in OURS if name not in DICTATED])
@pytest.mark.parametrize("request_class", REQUESTS)
def test_it_is_refused_before_a_stream_begins(request_class: Any, name: str) -> None:
    body = {**REQUESTS[request_class], "stream": True}
    request = request_class.model_validate({**body, "vllm_xargs": {name: "z"}})
    with pytest.raises(VLLMValidationError, match=f"^{name}: "):
        request.to_sampling_params(9, {})
    request_class.model_validate({**body, "vllm_xargs": {"theirs": 1}}).to_sampling_params(9, {})


def test_calls_without_a_reply_are_dictated_nowhere(processor: InputProcessor) -> None:
    for reply in ({}, {REPLY_ARGUMENT: None}):
        with pytest.raises(VLLMValidationError, match=r"^agentcache_.*--forced-replies"):
            process(processor, SamplingParams(extra_args={CALLS_ARGUMENT: "[]", **reply}))


@pytest.mark.parametrize("request_id", [f"a{FILL_MARK}1", f"a{ANSWER_MARK}", f"{FILL_MARK}{ANSWER_MARK}"])
def test_an_id_that_looks_like_one_of_ours_is_refused(processor: InputProcessor, request_id: str) -> None:
    with pytest.raises(VLLMValidationError, match="request_id"):
        process(processor, SamplingParams(), request_id)


def test_marks_join_the_clients_arguments_in_the_core_alone(processor: InputProcessor) -> None:
    given = mark(mark(SamplingParams(extra_args={"theirs": 1}), {ROLES_ARGUMENT: "u"}), {TOOLS_DECLARED_ARGUMENT: True})
    # The same parameters may make several requests.
    for _ in range(2):
        params = process(processor, given).sampling_params
        assert params is not None
        assert params.extra_args == {"theirs": 1, ROLES_ARGUMENT: "u", TOOLS_DECLARED_ARGUMENT: True}
    assert given.extra_args == {"theirs": 1}
    assert marks_of(given) == {ROLES_ARGUMENT: "u", TOOLS_DECLARED_ARGUMENT: True}


@pytest.mark.parametrize("arguments", [None, {"theirs": [1, 2]}])
def test_the_clients_own_arguments_are_kept_and_left_alone(arguments: dict[str, Any] | None) -> None:
    request = make_chat(tools=[TOOL], vllm_xargs=arguments)
    for _ in range(2):
        params = request.to_sampling_params(9, {})
        assert (params.extra_args, marks_of(params)[TOOLS_DECLARED_ARGUMENT]) == (arguments, ["weather"])
        assert request.vllm_xargs == arguments


def test_the_rest_of_the_request_is_as_without_us() -> None:
    options = {"n": 3, "seed": 7, "temperature": 0.5, "stop": ["x"], "kv_transfer_params": {"a": 1}}
    marked, plain = (make_chat(**tools, **options).to_sampling_params(9, {}) for tools in ({"tools": [TOOL]}, {}))
    assert marked.extra_args == {"kv_transfer_params": {"a": 1}}
    assert repr(marked) == repr(plain)
    assert marked.n == 3


def test_marking_twice_wraps_once() -> None:
    once = ChatCompletionRequest.to_sampling_params
    mark_prompts()
    assert ChatCompletionRequest.to_sampling_params is once


def test_the_check_of_the_server_passes_with_it() -> None:
    check_server.cache_clear()
    check_server()


# In the core, which a front end other than Python's may send anything.

WRONG: list[Mapping[str, Any]] = [
    {ROLES_ARGUMENT: "z"},
    {ROLES_ARGUMENT: "u" * 10_000},
    {ROLES_ARGUMENT: ["u"]},
    {ROLES_ARGUMENT: 7},
    {TOOLS_DECLARED_ARGUMENT: ["a", 1]},
    {TOOLS_DECLARED_ARGUMENT: [["a"]]},
    {TOOLS_DECLARED_ARGUMENT: ["a"] * 10_000},
    {TOOLS_DECLARED_ARGUMENT: "a"},
    {CONTINUES_ARGUMENT: ["resp_1"]},
    {CONTINUES_ARGUMENT: 7},
    {LEFT_ARGUMENT: -5},
    {LEFT_ARGUMENT: True},
    {LEFT_ARGUMENT: "9"},
    {TOOL_CHOICE_ARGUMENT: {"name": 1}},
    {REPLY_ARGUMENT: None, CALLS_ARGUMENT: "[["},
    {REPLY_ARGUMENT: "z", CALLS_ARGUMENT: '[["a", 1]]'},
    {REPLY_ARGUMENT: [0], CALLS_ARGUMENT: 7},
]


@pytest.mark.parametrize("marks", WRONG, ids=lambda marks: f"{marks}"[:40])
def test_a_mark_of_a_wrong_kind_is_no_mark(marks: dict[str, Any]) -> None:
    tracked = Tracked(RuntimePolicy(factors=True))
    head = [1] * 2 * BLOCK
    # One message by its end-of-turn tokens, which a changed prompt's roles are counted by.
    prompts = ([*head, *[7] * 2 * BLOCK], [*head, 8, END, *[9] * 2 * BLOCK])
    known = {TOOLS_DECLARED_ARGUMENT: ["a"]}
    for number, (prompt, told) in enumerate(zip(prompts, (known, marks), strict=True)):
        request = tracked.ask(f"{number}", prompt, session="s", calls=None, marks=told, end_of_turn=END)
        tracked.admit(request)
        tracked.reply(request)
    assert (read_roles(request), read_left(request), read_predecessor(request)) == ("", 0, None)
    (view,) = tracked.tracker.view_session("s")
    assert [turn.status for turn in view.turns] == ["finished", "finished"]


def test_blocks_are_taken_for_the_request_that_asks(tiny_model_path: str) -> None:
    lone = LoneScheduler(make_scheduler(make_config(tiny_model_path, SCHEDULER_CLASS, policy="agentcache"), 24))
    prompt = list(range(10, 10 + 8 * BLOCK_SIZE + 1))
    lone.add("first", prompt, 2, calls=[], session_id="loser")
    while not lone.idle:
        lone.step()
    lone.add("victim", list(range(2000, 2100)), 60, calls=[], session_id="innocent")
    for _ in range(4):
        lone.step()
    lone.add(f"victim{FILL_MARK}1", list(range(3000, 3000 + 16 * BLOCK_SIZE)), 2, calls=[], session_id="taker")
    while not lone.idle:
        lone.step()
    lone.add("second", prompt, 2, calls=[], session_id="loser")
    while not lone.idle:
        lone.step()
    (job,) = lone.scheduler.tracker.view_session("loser")
    assert {loss.taker for loss in job.turns[-1].lost_to} == {"taker"}
