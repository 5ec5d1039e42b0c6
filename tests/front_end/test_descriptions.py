"""What the API server tells the engine core of a prompt's messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.v1.request import Request

from agentcache.engine.constants import (
    CONTINUES_ARGUMENT,
    QUESTIONS_ARGUMENT,
    ROLES_ARGUMENT,
    SENT_ARGUMENT,
)
from agentcache.engine.marks import Questions, read_questions
from agentcache.front_end.descriptions import describe_chat, describe_response, find_questions

CALL = {"type": "function_call", "call_id": "1", "name": "weather", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "1", "output": "rain"}
TEXT = {"type": "output_text", "text": "I see.", "annotations": []}
REPLY = {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": [TEXT]}
THOUGHT = {"type": "reasoning", "id": "r", "summary": [], "content": None}
ASKED = {"role": "user", "content": "?"}


def test_a_chat_s_roles_are_told_a_letter_each() -> None:
    roles = ["system", "user", "assistant", "tool", "tool", "assistant", "developer", "user"]
    messages = [{"role": role, "content": "?", "tool_call_id": "1"} for role in roles]
    told = describe_chat(ChatCompletionRequest.model_validate({"messages": messages}))
    assert told[SENT_ARGUMENT]["messages"][::9] == "suattasu"
    assert told[ROLES_ARGUMENT] == "suattasu"


@pytest.mark.parametrize(
    ("body", "roles"),
    [
        ({"input": "?"}, "u"),
        ({"input": "?", "instructions": "Be brief."}, "su"),
        ({"input": [ASKED, {"role": "assistant", "content": "!"}, ASKED]}, "uau"),
        # Reasoning, text and calls are one reply; results are a message each.
        ({"input": [ASKED, THOUGHT, REPLY, CALL, CALL, RESULT, RESULT, CALL, RESULT]}, "uattat"),
    ],
)
def test_the_items_of_a_response_are_told_as_messages(body: dict[str, Any], roles: str) -> None:
    assert describe_response(ResponsesRequest.model_validate(body))[ROLES_ARGUMENT] == roles


def test_of_a_response_that_goes_on_the_one_before_is_told() -> None:
    arguments = describe_response(ResponsesRequest.model_validate({"input": "?", "previous_response_id": "resp_1"}))
    assert arguments[CONTINUES_ARGUMENT] == "resp_1"
    assert ROLES_ARGUMENT not in arguments


def tell_chat(*messages: dict[str, Any]) -> Request:
    chat = ChatCompletionRequest.model_validate({"messages": list(messages)})
    return Request("a", [1], SamplingParams(extra_args=describe_chat(chat)), None)


def test_a_chat_s_questions_are_told() -> None:
    system = {"role": "system", "content": "It is noon."}
    reply = {"role": "assistant", "content": "Rain.", "reasoning": "Hm."}
    more = {"role": "user", "content": [{"type": "text", "text": "And then?", "cache_control": {"type": "ephemeral"}}]}
    first = read_questions(tell_chat(system, ASKED))
    assert (first.asked is not None, first.answered) == (True, None)
    # Another time of day, the thought left out, the same text as a list of parts.
    again = [{"role": "system", "content": "It is one."}, {**ASKED, "content": [{"type": "text", "text": "?"}]}]
    second = read_questions(tell_chat(*again, {"role": "assistant", "content": ""}, more))
    assert second.answered == first.asked != second.asked
    # What the client begins for the model answers nothing.
    assert read_questions(tell_chat(system, ASKED, reply)) == first
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:a"}}]}
    assert read_questions(tell_chat(system, image)).asked not in {None, first.asked}


def test_a_response_s_questions_are_told() -> None:
    bodies: list[Any] = [
        "?",
        [ASKED],
        [ASKED, CALL, RESULT],
        [ASKED, THOUGHT, REPLY, CALL, {**RESULT, "output": "sun"}],
    ]
    told = [describe_response(ResponsesRequest.model_validate({"input": body})) for body in bodies]
    asked, same, rain, sun = (Questions(*each[QUESTIONS_ARGUMENT]) for each in told)
    assert asked == same
    assert rain.answered == sun.answered == asked.asked
    assert rain.asked != sun.asked


@pytest.mark.parametrize(
    ("messages", "answered"),
    [
        ("", None),
        ("u", None),
        ("sutt", None),
        # Of the client's own: a greeting, what it begins for the model.
        ("au", None),
        ("uaa", None),
        ("uas", None),
        ("uau", "u"),
        ("ssuattaus", "ssuatt"),
    ],
)
def test_the_last_reply_answers_what_stood_before_it(messages: str, answered: str | None) -> None:
    numbered = [(letter, str(number)) for number, letter in enumerate(messages)]
    expected = None if answered is None else find_questions(numbered[: len(answered)]).asked
    assert find_questions(numbered).answered == expected
    asking = [message for message in numbered if message[0] in "ut"]
    assert find_questions(numbered).asked == find_questions(asking).asked


@pytest.mark.parametrize("content", ["x" * 2**22, [{"type": "text", "text": "x"}] * 8192], ids=["characters", "parts"])
def test_a_prompt_too_long_to_read_asks_nothing_known(content: Any) -> None:
    assert find_questions([("u", "a"), ("a", None), ("u", content)]) == Questions()
    assert find_questions([("u", "a"), ("a", None), ("u", content[:-100])]) != Questions()


def test_no_more_messages_are_read_than_told() -> None:
    read = 0

    def messages() -> Iterator[tuple[str, Any]]:
        nonlocal read
        for _ in range(20_000):
            read += 1
            yield "u", "a"

    assert find_questions(messages()) == Questions()
    assert read < 10_000
