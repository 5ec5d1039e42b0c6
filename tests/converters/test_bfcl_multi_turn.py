from __future__ import annotations

import json

import pytest
from converters.bfcl_multi_turn import find_task, read_jobs
from converters.bfcl_shapes import read_shapes
from converters.left_out import LeftOut
from converters.pace import Pace
from made_encode import encode

from agentcache.errors import InputError
from tool_runtime.agent.job import ToolCall


def step(*tools, results=None, tokens=80):
    sizes = [40] * len(tools) if results is None else results
    return {"tools": list(tools), "tool_result_chars": sizes, "output_tokens": tokens, "input_tokens": 9}


def shape(*turns, task="multi_turn_base_0", **fields):
    recorded = [{"user_chars": [9], "steps": list(steps)} for steps in turns]
    return {"model": "m", "id": task, "turns": recorded, **fields}


GOOD = shape([step("ls", "pwd"), step()], [step("cd"), step(tokens=120)])


def load(folder, *entries, jobs=None):
    path = folder / "shapes.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    pace = Pace(lambda count: [0.0] * count, lambda _rng: 2.0, lambda _rng: 7.0, seed=0)
    return read_jobs(path, jobs=jobs, encode=encode, pace=pace, left_out=LeftOut())


def test_a_shape_gets_the_questions_and_tools_of_its_task(tmp_path):
    [job] = load(tmp_path, GOOD)
    task = find_task("multi_turn_base_0")
    assert job.id == "multi_turn_base_0-m"
    assert [message["content"] for message in job.messages] == [task.questions[0]]
    assert job.tools == task.tools
    assert [[call.name for call in turn.tool_calls] for turn in job.turns] == [["ls", "pwd"], [], ["cd"], []]
    assert [turn.pause_s for turn in job.turns] == [0.0, 7.0, 0.0, 0.0]
    assert job.turns[1].said == ({"role": "user", "content": task.questions[1]},)


def test_replies_and_results_have_their_recorded_sizes(tmp_path):
    [job] = load(tmp_path, GOOD)
    assert len(encode(job.turns[1].content)) == pytest.approx(80, abs=2)
    assert len(encode(job.turns[3].content)) == pytest.approx(120, abs=2)
    assert len(encode(job.turns[0].content)) < 60  # its calls are part of the 80
    sizes = [len(encode(result.content)) for turn in job.turns for result in turn.results]
    assert sizes == pytest.approx([10, 10, 10], abs=2)


def test_a_name_loses_the_tags_behind_it(tmp_path):
    [job] = load(tmp_path, shape([step("ls<|channel|>json", "??"), step()]))
    assert job.turns[0].tool_calls == (ToolCall("ls", "{}"), ToolCall("unknown", "{}"))


def test_calls_that_were_never_run_are_text(tmp_path):
    unread = [step("mv", results=[])]
    [job] = load(tmp_path, shape(unread, [step("ls")]))
    assert [turn.tool_calls for turn in job.turns] == [(), ()]
    assert [bool(turn.said) for turn in job.turns] == [True, False]


def test_failed_recordings_are_left_out(tmp_path):
    failed = {"model": "m", "id": "multi_turn_base_2", "error": True}
    assert [job.id for job in load(tmp_path, failed, GOOD)] == ["multi_turn_base_0-m"]
    with pytest.raises(InputError, match="holds no entries"):
        load(tmp_path, failed)


def test_a_turn_without_a_question_has_the_hint_of_new_tools():
    questions = find_task("multi_turn_miss_func_0").questions
    assert all(questions)
    assert any("functions" in question for question in questions)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({**GOOD, "model": 3}, "model: .*valid string"),
        ({"model": "m"}, "id: Field required"),
        ({"model": "m", "id": "multi_turn_base_0"}, "turns: holds none"),
        (shape([]), r"turns\[0\]\.steps: .*at least 1 item"),
        (shape([step(tokens=2**62)]), r"turns\[0\]\.steps\[0\]\.output_tokens: "),
        (shape([step(tokens=0)]), r"turns\[0\]\.steps\[0\]\.output_tokens: .*greater than or equal to 1"),
        (shape([step(), step()]), r"turns\[0\]\.steps\[0\]: calls no tool, yet steps follow"),
        (shape([step("a", "b", results=[1])]), r"turns\[0\]\.steps\[0\]: 2 tools but 1 results"),
        (shape([step()], task="multi_turn_base_9999"), "id: multi_turn_base_9999 is no multi-turn task"),
        (shape([step()], task="web_search_1"), "id: web_search_1 is no multi-turn task"),
        (shape(*[[step()]] * 99, task="multi_turn_base_4"), "turns: 99, but multi_turn_base_4 has"),
        (GOOD, "id: multi_turn_base_0 of m again, after line 1"),
    ],
)
def test_a_bad_line_is_named_by_number_and_field(tmp_path, entry, problem):
    with pytest.raises(InputError, match=rf"shapes\.jsonl:2: {problem}") as caught:
        load(tmp_path, GOOD, entry)
    assert "\n" not in str(caught.value)


def test_sizes_of_one_job_are_bounded_together(tmp_path):
    path = tmp_path / "shapes.jsonl"
    path.write_text(json.dumps(shape([step("a", results=[900_000], tokens=9_000_000)])))
    assert len(read_shapes(path)) == 1
    path.write_text(json.dumps(shape([step("a", "b", results=[900_000, 900_000], tokens=9_000_000)])))
    with pytest.raises(InputError, match=r"shapes\.jsonl:1: turns: .* are 10800000 together; a job may have 10000000"):
        read_shapes(path)
