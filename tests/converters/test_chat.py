from __future__ import annotations

import json

import pytest
from converters.chat import ChatMessage, declare_tools, read_chat
from hypothesis import given
from hypothesis import strategies as st

from agentcache.errors import InputError
from tool_runtime.agent.job import ToolCall, ToolResult, Turn


def message(role, content="", calls=()):
    called = [{"id": "c", "type": "function", "function": {"name": name, "arguments": "{}"}} for name in calls]
    return ChatMessage.model_validate({"role": role, "content": content, "tool_calls": called or None})


SYSTEM, USER, END = message("system", "Be kind."), message("user", "Hello"), message("assistant", "End")


def read(*messages):
    return read_chat("job", messages, "file: chat")


def test_a_reply_is_a_turn_with_what_came_behind():
    job = read(SYSTEM, USER, message("assistant", None, ["look", "see"]), message("tool", "A"), message("tool", "B"),
               message("assistant", "Found."), message("user", "Thanks"), message("assistant", "Bye"))  # fmt: skip
    assert job.messages == ({"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"})
    assert job.turns == (
        Turn("", (ToolCall("look", "{}"), ToolCall("see", "{}")), (ToolResult("A", 0.0), ToolResult("B", 0.0))),
        Turn("Found.", said=({"role": "user", "content": "Thanks"},)),
        Turn("Bye"),
    )


def test_what_stands_behind_the_last_reply_is_left_out():
    assert read(USER, message("assistant", "Bye"), message("user", "###STOP###")).turns == (Turn("Bye"),)


def test_calls_of_the_last_reply_become_its_text():
    [turn] = read(USER, message("assistant", "So:", ["give_up"]), message("tool", "ok")).turns
    assert turn == Turn("So:" + json.dumps([{"name": "give_up", "arguments": "{}"}]))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_no_reply_and_no_result_is_lost(calls_of_turns):
    chat = [USER]
    for calls in calls_of_turns:
        chat.append(message("assistant", "x", ["tool"] * calls))
        chat += [message("tool", f"{number}") for number in range(calls)] or [USER]
    job = read(*chat, message("assistant", "End"))
    assert [len(turn.results) for turn in job.turns] == [*calls_of_turns, 0]
    assert [len(turn.said) for turn in job.turns] == [*(not calls for calls in calls_of_turns), 0]


def test_tools_known_by_name_are_declared_once_and_in_order():
    assert [tool["function"]["name"] for tool in declare_tools(["b", "a", "b"])] == ["a", "b"]


@pytest.mark.parametrize(
    ("chat", "problem"),
    [
        ([SYSTEM, USER], "file: chat: has no message of the assistant"),
        ([message("assistant", "Hi")], r"file: chat\[0\]: is a reply; it needs a message before it"),
        ([USER, message("assistant", "", ["a"]), USER, END], r"file: chat\[1\]: 1 calls but 0 results"),
        ([USER, message("assistant", "a"), message("tool", "r"), END], r"file: chat\[1\]: 0 calls but 1 results"),
        (
            [USER, message("assistant", "", ["a"]), message("tool", "r"), USER, message("tool", "r"), END],
            r"file: chat\[1\]: has a result behind what was said",
        ),
        ([USER, message("assistant", "a"), END], r"file: chat\[1\]: another reply follows at once"),
    ],
)
def test_a_chat_that_is_no_loop_is_refused(chat, problem):
    with pytest.raises(InputError, match=f"^{problem}"):
        read(*chat)


def test_arguments_that_are_no_object_are_refused():
    call = {"function": {"name": "look", "arguments": "[1]"}}
    reply = ChatMessage.model_validate({"role": "assistant", "content": None, "tool_calls": [call]})
    with pytest.raises(InputError, match=r"chat\[1\]: the arguments of look are no JSON object"):
        read(USER, reply, message("tool", "r"), message("assistant", "End"))
