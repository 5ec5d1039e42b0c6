"""What the API server tells of the messages and tools that a client has sent."""

from __future__ import annotations

import itertools
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

from agentcache.engine.constants import SENT_ARGUMENT
from agentcache.front_end.sent_digests import _SERVER, digest_chat, digest_response, note_excluded_tools


def chat(*messages: dict[str, Any], **options: Any) -> str:
    return told(digest_chat(ChatCompletionRequest.model_validate({"messages": messages, **options})))


def told(marks: dict[str, Any], field: str = "messages") -> str:
    return str(marks[SENT_ARGUMENT][field])


TOOL = {"type": "function", "function": {"name": "look", "description": "around", "parameters": {}}}
TEXT = {"type": "text", "text": "Look!"}


def test_digests_tell_what_a_template_may_show() -> None:
    question = {"role": "user", "content": [TEXT]}
    same = {"role": "user", "content": [{**TEXT, "cache_control": {"type": "ephemeral"}}]}
    calls = [{"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    reply = {"role": "assistant", "content": None, "tool_calls": calls}
    assert chat(question, reply) == chat(same, reply)
    others = [
        chat(question),
        chat({"role": "user", "content": "Look?"}),
        chat({**question, "role": "system"}),
        chat(reply),
        chat({**reply, "reasoning": "Hm."}),
        chat({**reply, "tool_calls": [{**calls[0], "function": {"name": "look", "arguments": "{ }"}}]}),
    ]
    for one, other in itertools.combinations(others, 2):
        assert one != other
    assert chat({**reply, "reasoning": "Hm."})[0] == "r"


def test_digests_of_tools_are_of_names_and_definitions() -> None:
    def of(*tools: dict[str, Any], **options: Any) -> str:
        asked = ChatCompletionRequest.model_validate({"messages": [], "tools": tools, **options})
        return told(digest_chat(asked), "tools")

    renamed, described = (
        {**TOOL, "function": {**TOOL["function"], **change}} for change in ({"name": "see"}, {"description": "?"})
    )  # type: ignore[dict-item]
    assert of(TOOL)[:8] == of(described)[:8] != of(renamed)[:8]
    assert of(TOOL)[8:] != of(described)[8:]
    many = [{**TOOL, "function": {**TOOL["function"], "name": f"tool_{n}"}} for n in range(600)]  # type: ignore[dict-item]
    assert len(of(*many)) == 512 * 16
    assert of(*many) != of(*many[:-1])


def test_tools_that_the_server_leaves_out_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_SERVER, "excludes_tools", False)
    asked = ChatCompletionRequest.model_validate({"messages": [], "tools": [TOOL], "tool_choice": "none"})
    assert told(digest_chat(asked), "tools")
    note_excluded_tools(SimpleNamespace(exclude_tools_when_tool_choice_none=True))  # type: ignore[arg-type]
    assert told(digest_chat(asked), "tools") == ""


def test_what_cannot_be_digested_is_not_told() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    half = ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": "\ud800"}]})
    nested = ChatCompletionRequest.model_validate({"messages": [], "chat_template_kwargs": {"a": 1}})
    nested.chat_template_kwargs = {"a": deep}
    parts = ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": [TEXT] * 5000}]})
    assert digest_chat(half) == digest_chat(nested) == digest_chat(parts) == {}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "x" * 2**22}]},
        {"messages": [{"role": "user", "content": "x" * 2**12}] * 2**10},
        {"messages": [], "tools": [TOOL] * 5000},
        {"messages": [], "tools": [TOOL | {"function": {"name": "a", "description": "x" * 2**22}}]},
        {"messages": [], "chat_template_kwargs": {"a": "x" * 2**22}},
    ],
)
def test_no_more_than_four_megabytes_are_digested(body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = []

    def note(data: bytes, **options: Any) -> Any:
        hashed.append(len(data))
        return blake2b(data, **options)

    monkeypatch.setattr("agentcache.front_end.sent_digests.blake2b", note)
    assert digest_chat(ChatCompletionRequest.model_validate(body)) == {}
    assert sum(hashed) <= 2**22


def test_a_response_tells_its_instructions_apart() -> None:
    def of(**body: Any) -> str:
        return told(digest_response(ResponsesRequest.model_validate(body)))

    assert of(input="?")[:9] != of(input="?", instructions="Be brief.")[:9]
    assert of(input="?")[9:] == of(input=[{"role": "user", "content": "?"}], instructions="Be brief.")[9:]
    items = [{"role": "user", "content": "?"}, {"type": "reasoning", "id": "r", "summary": [], "content": None}]
    call = {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "1", "output": "rain"}
    assert of(input=[*items, call, result])[::9] == "surat"


def test_merged_system_messages_are_told_as_sent() -> None:
    def of(system: Any, *messages: dict[str, Any]) -> str:
        body = {"model": "m", "max_tokens": 9, "system": system, "messages": messages}
        request = AnthropicMessagesRequest.model_validate(body)
        made = AnthropicServingMessages.to_chat_completion_request(request, merge_inline_system=True)
        return told(digest_chat(made, body))

    question, reminder = {"role": "user", "content": "?"}, {"role": "system", "content": "Mind the list."}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "rain"}]}
    thought = {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""}]}
    plain = of("Be brief.", question)
    assert of("Be brief.", question, thought, result, reminder) == plain + of("", thought, result, reminder)[9:]
    assert of("Be brief.", question, thought, result, reminder)[::9] == "surts"
    billed = [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "Be brief."}]
    assert of(billed, question) == plain
    # Passed over by vLLM as well.
    assert of("Be brief.", {**question, "uuid": "1"}) == plain
