from __future__ import annotations

import json

import pytest
from converters.bfcl_results import read_results
from converters.left_out import LeftOut
from made_pace import make_pace

from agentcache.errors import InputError
from tool_runtime.agent.job import ToolCall, ToolResult, Turn
from workloads.bfcl.dataset import read_system_message, read_tools

QUERY = [{"role": "developer", "content": "Answer in this form."}, {"role": "user", "content": "Who grows tea?"}]


def make_step(content, *results, reasoning=None):
    reply = {"role": "assistant", "content": content}
    if reasoning:
        reply["reasoning_content"] = reasoning
    log = {"role": "handler_log", "content": "Successfully decoded model response.", "model_response_decoded": []}
    return [reply, log, *({"role": "tool", "content": result} for result in results)]


def make_entry(entry_id="web_search_base_0", steps=None, query=QUERY):
    steps = steps or [
        make_step([{"search_engine_query": '{"keywords": "tea"}'}], "[{'title': 'Tea'}]", reasoning="I should look."),
        make_step(
            [{"fetch_url_content": '{"url": "https://example.org/a"}'}, {"search_engine_query": '{"keywords": "b"}'}],
            '{"error": "403 Client Error"}',
            "Error during execution: no such region",
        ),
        make_step("{'answer': 'India', 'context': 'A page says so'}"),
    ]
    turn = {"begin_of_turn_query": query, **{f"step_{number}": step for number, step in enumerate(steps)}}
    return {
        "id": entry_id,
        "result": [[]],
        "input_token_count": [[10, 20, 30]],
        "inference_log": [[{"role": "state_info", "class_name": "X", "content": {}}], turn],
    }


def write(tmp_path, *lines):
    path = tmp_path / "BFCL_v4_web_search_base_result.json"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def read(path, jobs=None, left_out=None):
    return read_results(path, jobs=jobs, pace=make_pace(tool_s=1.5), left_out=left_out or LeftOut())


def test_an_entry_keeps_its_messages_calls_and_results(tmp_path):
    (job,) = read(write(tmp_path, make_entry()))
    assert job.id == "web_search_base_0"
    assert job.messages == ({"role": "system", "content": "Answer in this form."}, QUERY[1])
    assert job.tools == read_tools()
    fetch_error, search_error = "403 Client Error", "Error during execution: no such region"
    assert job.turns == (
        Turn(
            "",
            (ToolCall("search_engine_query", '{"keywords": "tea"}'),),
            (ToolResult("[{'title': 'Tea'}]", 1.5),),
        ),
        Turn(
            "",
            (
                ToolCall("fetch_url_content", '{"url": "https://example.org/a"}'),
                ToolCall("search_engine_query", '{"keywords": "b"}'),
            ),
            (
                ToolResult('{"error": "403 Client Error"}', 1.5, fetch_error),
                ToolResult(search_error, 1.5, search_error),
            ),
        ),
        Turn("{'answer': 'India', 'context': 'A page says so'}"),
    )


def test_claude_s_log_gets_its_system_message_and_joined_text(tmp_path):
    query = [{"role": "user", "content": [{"type": "text", "text": "Who?", "cache_control": {"type": "ephemeral"}}]}]
    (job,) = read(write(tmp_path, make_entry(query=query, steps=[make_step(["India", "Because."])])))
    assert job.messages == (read_system_message(), {"role": "user", "content": "Who?"})
    assert job.turns == (Turn("India\nBecause."),)


def test_a_system_message_sent_as_the_users_is_not_given_twice(tmp_path):
    query = [{"role": "user", "content": read_system_message()["content"]}, {"role": "user", "content": "Who?"}]
    (job,) = read(write(tmp_path, make_entry(query=query)))
    assert job.messages == tuple(query)


def test_steps_are_ordered_by_number_beyond_ten(tmp_path):
    steps = [make_step([{"search_engine_query": json.dumps({"keywords": str(n)})}], "[]") for n in range(11)]
    (job,) = read(write(tmp_path, make_entry(steps=[*steps, make_step("done")])))
    keywords = [json.loads(turn.tool_calls[0].arguments)["keywords"] for turn in job.turns[:-1]]
    assert keywords == [str(n) for n in range(11)]


def test_calls_that_no_request_followed_end_the_job_as_text(tmp_path):
    calls = [{"search_engine_query": '{"keywords": "tea"}'}]
    (job,) = read(write(tmp_path, make_entry(steps=[make_step(calls, "[]"), make_step(calls, "[]")])))
    assert job.turns[-1] == Turn(json.dumps(calls))


def test_the_first_jobs_are_taken(tmp_path):
    path = write(tmp_path, *(make_entry(f"web_search_base_{n}") for n in range(3)), "")
    jobs = read(path, jobs=2)
    assert [(job.id, job.arrival_s) for job in jobs] == [("web_search_base_0", 0.0), ("web_search_base_1", 1.0)]
    assert jobs == read(path)[:2]
    with pytest.raises(InputError, match=r"--jobs 4: .* holds 3 entries"):
        read(path, jobs=4)


PROMPTING_STEP = make_step("[search_engine_query(keywords='tea')]", "[]")
SEARCH = [{"search_engine_query": "{}"}]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"id": "web_search_base_1", "resu', "not JSON"),
        ("[]", "not a BFCL result: no id"),
        ({"id": "web_search_base_1", "result": []}, "no inference_log to replay"),
        ({"id": "web_search_base_1", "inference_log": {}}, "inference_log is not a list"),
        ({"id": "web_search_base_1", "inference_log": [{}, {}]}, "2 user turns; only entries with one"),
        (make_entry("multi_turn_base_1"), "only web_search entries are replayed"),
        (make_entry("web_search_base_1", query=[]), "no begin_of_turn_query"),
        ({"id": "web_search_base_1", "inference_log": [{"begin_of_turn_query": QUERY}]}, "no step_0"),
        (make_entry("web_search_base_1", [PROMPTING_STEP, make_step("done")]), "step_0: calls as text"),
        (make_entry("web_search_base_1", [make_step("a"), make_step("b")]), "step_0: text, yet steps follow"),
        (make_entry("web_search_base_1", [make_step(SEARCH), make_step("b")]), "step_0: 1 calls but 0 results"),
        (make_entry("web_search_base_1", [[], make_step("b")]), "step_0: 0 assistant entries"),
        (make_entry("web_search_base_1", [make_step(7)]), "step_0: content is not text"),
        (make_entry("web_search_base_0"), "id web_search_base_0 again, after line 1"),
    ],
)  # fmt: skip
def test_a_broken_entry_is_named_by_line(tmp_path, line, problem):
    path = write(tmp_path, make_entry(), line)
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_failed_runs_and_reasoning_are_left_out_and_counted(tmp_path):
    failed = {"id": "web_search_base_7", "result": "Error during inference: timed out", "traceback": "Traceback"}
    left_out = LeftOut()
    jobs = read(write(tmp_path, failed, make_entry(), failed), left_out=left_out)
    assert [job.id for job in jobs] == ["web_search_base_0"]
    assert [*left_out.describe()] == [
        "Runs that failed and hold nothing to replay, left out: 2.",
        "Fields that are not read, passed over: reasoning_content 1.",
    ]
    with pytest.raises(InputError, match="holds 1 runs, all of which failed"):
        read(write(tmp_path, failed))


def test_a_missing_or_empty_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "none.json")
    with pytest.raises(InputError, match="holds no entries"):
        read(write(tmp_path))


_DEEP = "[" * 100_000
_DIGITS = "1" * 5000


@pytest.mark.parametrize("text", [_DEEP, f'{{"id": {_DIGITS}}}'], ids=["levels", "digits"])
def test_json_of_too_many_levels_or_digits_is_refused(text, tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=r"f\.jsonl"):
        read(path)


@pytest.mark.parametrize("step", ["step_²", f"step_{_DIGITS}"], ids=["superscript", "digits"])
def test_a_step_has_a_number_in_digits(step, tmp_path):
    path = tmp_path / "f.jsonl"
    log = [{"begin_of_turn_query": [{"role": "user", "content": "a"}], step: []}]
    path.write_text(json.dumps({"id": "web_search_1", "inference_log": log}))
    with pytest.raises(InputError, match=r"f\.jsonl:1: no step_0"):
        read(path)


def test_arguments_and_results_of_any_depth_are_read(tmp_path):
    path = tmp_path / "f.jsonl"
    for arguments, result in (("{}", _DEEP), ("{}", _DIGITS), (_DEEP, "")):
        call = {"role": "assistant", "content": [{"look": arguments}]}
        answer = [{"role": "assistant", "content": "done"}]
        query = [{"role": "user", "content": "a"}]
        log = {"begin_of_turn_query": query, "step_0": [call, {"role": "tool", "content": result}], "step_1": answer}
        path.write_text(json.dumps({"id": "web_search_1", "inference_log": [log]}))
        if arguments == "{}":
            assert read(path)
        else:
            with pytest.raises(InputError, match=r"f\.jsonl:1: step_0: the arguments of look are no JSON object"):
                read(path)
