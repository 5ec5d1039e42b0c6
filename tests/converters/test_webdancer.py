from __future__ import annotations

import json

import pytest
from converters.left_out import LeftOut
from converters.webdancer import read_trajectories
from made_pace import make_pace

from agentcache.errors import InputError

TOOL = {"name_for_human": "s", "name_for_model": "search", "description_for_model": "Searches.", "parameters": {}}
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": ["été"]}}\n</tool_call>'
RESULT = "<tool_response>\nten hits\n</tool_response>"


def entry(*replies, **fields):
    chat = [{"role": "system", "content": "Search."}, {"role": "user", "content": "Who?"}]
    for number, content in enumerate(replies):
        chat.append({"role": ("assistant", "user")[number % 2], "content": content})
    return {"type": "chatml", "messages": chat, "functions": [TOOL], "tool_calls": [], "answer": [], **fields}


GOOD = entry(f"<think>Hm.</think>\n{CALL}", RESULT, "<answer>Ann</answer>")


def load(folder, entries):
    path = folder / "data.jsonl"
    texts = (one if isinstance(one, str) else json.dumps(one) for one in entries)
    path.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    return read_trajectories(path, jobs=None, pace=make_pace(), left_out=LeftOut())


def test_tags_become_calls_and_results(tmp_path):
    [job] = load(tmp_path, ["", GOOD])
    assert job.id == "trajectory-2"
    assert [tool["function"]["name"] for tool in job.tools] == ["search"]
    searched, answered = job.turns
    assert (searched.content, answered.content) == ("<think>Hm.</think>", "<answer>Ann</answer>")
    [call], [result] = searched.tool_calls, searched.results
    assert (call.name, call.arguments) == ("search", '{"query": ["été"]}')
    assert (result.content, result.duration_s, searched.pause_s) == ("ten hits", 2.0, 0.0)


def test_a_reply_may_call_several_tools_or_none(tmp_path):
    [job] = load(tmp_path, [entry(CALL, RESULT, "Which one?", "The first.", "Ann")])
    assert [turn.pause_s for turn in job.turns] == [0.0, 7.0, 0.0]
    assert job.turns[1].said == ({"role": "user", "content": "The first."},)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "Invalid JSON"),
        ({**GOOD, "messages": []}, "messages: .*at least 1 item"),
        ({"messages": GOOD["messages"]}, "functions: Field required"),
        (entry(), "messages: has no message of the assistant"),
        (entry("<tool_call>{</tool_call>", RESULT, "x"), r"messages\[2\]\.content: <tool_call>: Invalid JSON"),
        (
            entry('<tool_call>{"name": "search"}</tool_call>', RESULT, "x"),
            r"messages\[2\]\.content: <tool_call>: arguments: Field required",
        ),
        (
            entry('<tool_call>{"name": "a b", "arguments": {}}</tool_call>', RESULT, "x"),
            r"messages\[2\]\.content: <tool_call>: name: String should match",
        ),
        (entry(CALL, "no tag", "x"), r"messages\[2\]: 1 calls but 0 results"),
    ],
)
def test_a_bad_line_is_named_by_number_and_field(tmp_path, line, problem):
    with pytest.raises(InputError, match=rf"data\.jsonl:2: {problem}") as caught:
        load(tmp_path, [GOOD, line])
    assert "\n" not in str(caught.value)


def test_an_empty_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no entries"):
        load(tmp_path, [])
