"""Whose change it is that a prompt leaves the last turn: the client's, or the server's and its template's."""

from __future__ import annotations

import itertools
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

import pytest
from told_requests import END, answer, ask_told
from tracked_requests import BLOCK, Tracked
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

from agentcache.engine.constants import SENT_ARGUMENT
from agentcache.engine.jobs.sent_digests import (
    _SERVER,
    digest_chat,
    digest_response,
    note_excluded_tools,
)
from agentcache.engine.jobs.told_prompt import SentPrompt, find_message_change, find_tool_change, read_sent
from agentcache.engine.jobs.views import ChangeView

SYSTEM, OTHER = ("s", [1] * 4 * BLOCK), ("s", [1] * BLOCK + [2] * 3 * BLOCK)
ASKED, CALLED, RESULT = ("u", [5] * 20), ("a", [9] * 8), ("t", [7] * 9)


def find_change(
    now: list[tuple[str, list[int]]], sent: list[str], before: list[tuple[str, list[int]]] | None = None, **options: Any
) -> ChangeView | None:
    """Go on from a system message and a question; the client `sent` other messages than were rendered."""
    tracked, first = Tracked(), before or [SYSTEM, ASKED]
    sent_first = options.pop("sent_first", ["s1", "u1"])
    first_options = {
        name: options.pop(f"first_{name}") for name in ("tools", "options_sent") if f"first_{name}" in options
    }
    answer(tracked, ask_told(tracked, "one", first, session="s", sent=sent_first, **first_options))
    answer(tracked, ask_told(tracked, "two", now, session="s", sent=sent, **options))
    return tracked.tracker.view_session("s")[0].turns[-1].change


@pytest.mark.parametrize(
    ("first", "second", "cause"),
    [
        (["a", "b"], [], "tools left out"),
        (["a", "b"], ["b"], "tools left out"),
        (["a"], ["a", "b"], "tools changed"),
        (["a", "b"], ["a", "c"], "tools changed"),
        (["a", "b"], ["b", "a"], "tools reordered"),
        (["a", "b"], ["a", "b, heavier"], "tool text changed"),
        (["a", "b"], ["b, heavier", "a"], "tool text changed"),
    ],
)
@pytest.mark.parametrize("place", ["in the system message", "behind it"])
def test_each_change_of_tools_has_its_name(first: list[str], second: list[str], cause: str, place: str) -> None:
    now = [OTHER, ASKED] if place == "in the system message" else [SYSTEM, ("u", [6] * 20)]
    change = find_change([*now, CALLED, RESULT], ["s1", "u1", "a1", "t1"], first_tools=first, tools=second)
    assert change is not None
    assert change.cause == cause


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        (["s1", "u1", "a1", "t1", "s: mind the list"], "rendered anew"),
        (["s2", "u1", "a1", "t1"], "system message changed"),
        (["u1", "a1", "t1"], "system message changed"),
        (["s1", "u2", "a1", "t1"], "history changed"),
        (["s1"], "history changed"),
    ],
)
def test_what_the_client_repeats_is_not_its_change(sent: list[str], cause: str) -> None:
    change = find_change([OTHER, ASKED, CALLED, RESULT], sent)
    assert change is not None
    assert (change.cause, change.role) == (cause, "system")


def test_a_reminder_left_out_later_is_an_edit_of_history() -> None:
    reminded = ["s1", "u1", "s: mind the list"]
    change = find_change([OTHER, ASKED, CALLED, RESULT], ["s1", "u1", "a1", "t1"], sent_first=reminded)
    assert change is not None
    assert change.cause == "history changed"


def test_other_options_of_the_template_are_named() -> None:
    change = find_change([OTHER, ASKED, CALLED, RESULT], ["s1", "u1", "a1", "t1"], options_sent="no thoughts")
    assert change is not None
    assert change.cause == "options changed"


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        (["s1", "u1", "r1", "u2"], "rendered anew"),
        (["s1", "u1", "r1", "t1"], "reply not repeated"),
        (["s1", "u1", "a1", "u2"], "reply not repeated"),
    ],
)
def test_reasoning_that_the_template_hides_is_no_edit(sent: list[str], cause: str) -> None:
    change = find_change([SYSTEM, ASKED, CALLED, ("u", [8] * 20)], sent)
    assert change is not None
    assert (change.cause, change.role) == (cause, "assistant")


@pytest.mark.parametrize(("instructions", "cause"), [("s1", "rendered anew"), ("s2", "system message changed")])
@pytest.mark.parametrize("place", ["reply", "prompt"])
def test_a_reply_that_the_server_stored_is_its_own(instructions: str, cause: str, place: str) -> None:
    tracked = Tracked()
    first = ask_told(tracked, "resp_1_0-1f", [SYSTEM, ASKED], session="s", sent=["s1", "u1"])
    answer(tracked, first)
    head = [SYSTEM, ASKED] if place == "reply" else [OTHER, ASKED]
    answer(
        tracked, ask_told(tracked, "2", [*head, CALLED, RESULT], session="s", after="resp_1", sent=[instructions, "t1"])
    )
    change = tracked.tracker.view_session("s")[0].turns[-1].change
    assert change is not None
    assert change.cause == ("rendered anew" if place == "reply" else cause)


def test_another_adapter_is_named() -> None:
    one, two = (SentPrompt(("one", path)) for path in ("here", "there"))
    assert find_tool_change(one, two) is None
    assert find_message_change(one, two) == "unknown", "no API server told them"
    tracked = Tracked()
    first = ask_told(tracked, "one", [SYSTEM, ASKED], session="s")
    answer(tracked, first)
    second = ask_told(tracked, "two", [OTHER, ASKED, CALLED, RESULT], session="s", adapter="one")
    answer(tracked, second)
    change = tracked.tracker.view_session("s")[0].turns[-1].change
    assert change is not None
    assert change.cause == "adapter changed"


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

    monkeypatch.setattr("agentcache.engine.jobs.sent_digests.blake2b", note)
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


@pytest.mark.parametrize("value", [None, "text", {"messages": 1, "tools": "", "options": ""}, {"messages": ""}])
def test_a_mark_of_another_form_is_not_read(value: Any) -> None:
    tracked = Tracked()
    request = tracked.ask("one", [1, END], marks={SENT_ARGUMENT: value})
    assert read_sent(request) == SentPrompt(None)
