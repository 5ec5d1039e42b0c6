from __future__ import annotations

from typing import Any

import pytest
from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from agentcache.engine.constants import TOOL_CHOICE_ARGUMENT, TOOLS_DECLARED_ARGUMENT
from agentcache.front_end.descriptions import describe_tools
from agentcache.front_end.request_marks import join_marks
from agentcache.front_end.sent_digests import MAX_TOOLS
from tool_runtime.learning.tool_key import key_name

WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": WEATHER}
MARK = {TOOLS_DECLARED_ARGUMENT: ["weather"]}
RESPONSES_TOOL = {"type": "function", "strict": False, **WEATHER}


def make_chat(**options: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": "?"}], **options})


def describe(**options: Any) -> dict[str, Any]:
    return describe_tools(make_chat(**options))


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
    assert describe(tools=[TOOL], **choice) == MARK | mark


@pytest.mark.parametrize(
    ("choice", "mark"), [("auto", None), ("required", True), ({"type": "function", "name": "weather"}, "weather")]
)
def test_responses_that_must_call_tools_are_marked(choice: Any, mark: bool | str | None) -> None:
    request = ResponsesRequest.model_validate({"input": "?", "tools": [RESPONSES_TOOL], "tool_choice": choice})
    assert describe_tools(request).get(TOOL_CHOICE_ARGUMENT) == mark


def test_the_mark_arrives_in_the_engine_core_as_it_is() -> None:
    sent = MsgpackEncoder().encode(join_marks(SamplingParams(), describe(tools=[TOOL])))
    arrived: SamplingParams = MsgpackDecoder(SamplingParams).decode(sent)
    assert arrived.extra_args is not None
    assert arrived.extra_args[TOOLS_DECLARED_ARGUMENT] == ["weather"]


def test_tools_with_huge_names_reach_the_core_by_short_ones() -> None:
    name = "x" * 2_000_000
    marks = describe(tools=[{"type": "function", "function": {"name": name}}])
    assert marks == {TOOLS_DECLARED_ARGUMENT: [key_name(name)]}
    assert len(key_name(name)) <= 64


def test_very_many_tools_are_not_named() -> None:
    named = [{"type": "function", "function": {"name": f"tool_{number}"}} for number in range(MAX_TOOLS)]
    assert describe(tools=named) == {TOOLS_DECLARED_ARGUMENT: [f"tool_{n}" for n in range(MAX_TOOLS)]}
    assert describe(tools=[*named, TOOL]) == {TOOLS_DECLARED_ARGUMENT: True}


@pytest.mark.parametrize("options", [{}, {"tools": [TOOL], "tool_choice": "none"}, {"tools": None}])
def test_chats_that_call_no_tools_are_as_without_us(options: dict[str, Any]) -> None:
    assert describe(**options) == {}


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
    assert describe_tools(request).get(TOOLS_DECLARED_ARGUMENT) == mark
