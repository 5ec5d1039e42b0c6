from __future__ import annotations

from collections.abc import Iterator
from inspect import unwrap
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from agentcache.engine.compat import check_server
from agentcache.engine.constants import TOOL_CHOICE_ARGUMENT, TOOLS_DECLARED_ARGUMENT
from agentcache.engine.marks import join_marks, marks_of
from agentcache.engine.replies.declared_tools import MAX_TOOLS, mark_declared_tools
from tool_runtime.learning.tool_key import key_name

WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": WEATHER}
MARK = {TOOLS_DECLARED_ARGUMENT: ["weather"]}
RESPONSES_TOOL = {"type": "function", "strict": False, **WEATHER}


@pytest.fixture(autouse=True)
def _marking(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for request_class in (ChatCompletionRequest, ResponsesRequest):
        # An earlier test may have had it wrapped.
        monkeypatch.setattr(request_class, "to_sampling_params", unwrap(request_class.to_sampling_params))
    mark_declared_tools.cache_clear()
    mark_declared_tools()
    yield
    mark_declared_tools.cache_clear()


def make_chat(**options: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": "?"}], **options})


def params_of(**options: Any) -> SamplingParams:
    return make_chat(**options).to_sampling_params(9, {})


@pytest.mark.parametrize(
    ("choice", "mark"),
    [
        ({}, {}),
        ({"tool_choice": "auto"}, {}),
        ({"tool_choice": "required"}, {TOOL_CHOICE_ARGUMENT: True}),
        ({"tool_choice": {"type": "function", "function": {"name": "weather"}}}, {TOOL_CHOICE_ARGUMENT: "weather"}),
    ],
)
def test_chats_with_tools_are_marked(choice: dict[str, Any], mark: dict[str, Any]) -> None:
    assert marks_of(params_of(tools=[TOOL], **choice)) == MARK | mark


@pytest.mark.parametrize(
    ("choice", "mark"), [("auto", None), ("required", True), ({"type": "function", "name": "weather"}, "weather")]
)
def test_responses_that_must_call_tools_are_marked(choice: Any, mark: bool | str | None) -> None:
    request = ResponsesRequest.model_validate({"input": "?", "tools": [RESPONSES_TOOL], "tool_choice": choice})
    assert marks_of(request.to_sampling_params(9)).get(TOOL_CHOICE_ARGUMENT) == mark


def test_the_mark_arrives_in_the_engine_core_as_it_is() -> None:
    params = params_of(tools=[TOOL])
    sent = MsgpackEncoder().encode(join_marks(params, marks_of(params)))
    arrived: SamplingParams = MsgpackDecoder(SamplingParams).decode(sent)
    assert arrived.extra_args is not None
    assert arrived.extra_args[TOOLS_DECLARED_ARGUMENT] == ["weather"]


def test_tools_with_huge_names_reach_the_core_by_short_ones() -> None:
    name = "x" * 2_000_000
    params = params_of(tools=[{"type": "function", "function": {"name": name}}])
    assert marks_of(params) == {TOOLS_DECLARED_ARGUMENT: [key_name(name)]}
    assert len(key_name(name)) <= 64


def test_very_many_tools_are_not_named() -> None:
    named = [{"type": "function", "function": {"name": f"tool_{number}"}} for number in range(MAX_TOOLS)]
    assert marks_of(params_of(tools=named)) == {TOOLS_DECLARED_ARGUMENT: [f"tool_{n}" for n in range(MAX_TOOLS)]}
    assert marks_of(params_of(tools=[*named, TOOL])) == {TOOLS_DECLARED_ARGUMENT: True}


@pytest.mark.parametrize("options", [{}, {"tools": [TOOL], "tool_choice": "none"}, {"tools": None}])
def test_chats_that_call_no_tools_are_as_without_us(options: dict[str, Any]) -> None:
    assert params_of(**options).extra_args is None
    assert marks_of(params_of(**options)) == {}
    assert params_of(**options, vllm_xargs={"theirs": 1}).extra_args == {"theirs": 1}


@pytest.mark.parametrize("arguments", [None, {"theirs": [1, 2]}])
def test_the_clients_own_arguments_are_kept_and_left_alone(arguments: dict[str, Any] | None) -> None:
    request = make_chat(tools=[TOOL], vllm_xargs=arguments)
    for _ in range(2):
        params = request.to_sampling_params(9, {})
        assert (params.extra_args, marks_of(params)) == (arguments, MARK)
        assert request.vllm_xargs == arguments


def test_the_rest_of_the_request_is_as_without_us() -> None:
    options = {"n": 3, "seed": 7, "temperature": 0.5, "stop": ["x"], "kv_transfer_params": {"a": 1}}
    marked, plain = params_of(tools=[TOOL], **options), params_of(**options)
    assert marked.extra_args == {"kv_transfer_params": {"a": 1}}
    assert repr(marked) == repr(plain)
    assert marked.n == 3


@pytest.mark.parametrize(
    ("options", "mark"),
    [
        ({}, None),
        ({"tools": [RESPONSES_TOOL]}, ["weather"]),
        # The server's own are called by other names.
        ({"tools": [RESPONSES_TOOL, {"type": "web_search_preview"}]}, True),
        ({"tools": [RESPONSES_TOOL], "tool_choice": "none"}, None),
    ],
)
def test_responses_are_marked_as_well(options: dict[str, Any], mark: list[str] | bool | None) -> None:
    request = ResponsesRequest.model_validate({"input": "?", **options})
    params = request.to_sampling_params(9)
    assert marks_of(params).get(TOOLS_DECLARED_ARGUMENT) == mark


def test_marking_twice_wraps_once() -> None:
    once = ChatCompletionRequest.to_sampling_params
    mark_declared_tools()
    assert ChatCompletionRequest.to_sampling_params is once


def test_the_check_of_the_server_passes_with_it() -> None:
    check_server.cache_clear()
    check_server()
