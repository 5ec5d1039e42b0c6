from __future__ import annotations

import dataclasses
import json
import re

import pytest
from sizes import pick_size

from workloads.bfcl import web_search
from workloads.bfcl.dataset import read_questions, read_tools
from workloads.bfcl.web_search import Shape, Step, build_jobs, read_shapes, write_call_text
from workloads.pacing import parse_tool_latency

# A reply, or result, below this may be longer than wanted: the bare call or JSON form has about as many tokens.
BARE_FORM_TOKENS = 100


def build(count, encode, *, scale=1.0, seed=0):
    arrivals = [0.5 * number for number in range(count)]
    return build_jobs(
        count, encode=encode, scale=scale, tool_latency=parse_tool_latency("bfcl"), arrivals=arrivals, seed=seed
    )


def describe_calls(job):
    return [
        "".join("s" if call.name == "search_engine_query" else "f" for call in turn.tool_calls) for turn in job.turns
    ]


def count_reply_tokens(turn, encode):
    return len(encode(turn.content + "".join("\n" + write_call_text(call) for call in turn.tool_calls)))


def assert_sizes_follow_a_shape(job, encode, scale):
    """Some recorded shape has the job's calls, and its sizes, scaled, within 2 % or 3 tokens."""

    def is_close(tokens, recorded):
        wanted = recorded * scale
        return abs(tokens - wanted) <= max(3, 0.02 * wanted) or (wanted < BARE_FORM_TOKENS >= tokens >= wanted)

    def follows(shape):
        if [*(step.tools for step in shape.steps), ""] != describe_calls(job):
            return False
        return all(
            is_close(count_reply_tokens(turn, encode), step.output_tokens)
            and is_close(sum(len(encode(result.content)) for result in turn.results), step.result_tokens)
            for turn, step in zip(job.turns, shape.steps, strict=False)
        ) and is_close(count_reply_tokens(job.turns[-1], encode), shape.answer_tokens)

    assert any(follows(shape) for shape in read_shapes()), job.id


def test_recorded_shapes_are_the_ten_with_full_counts():
    shapes = read_shapes()
    assert len(shapes) == 10
    assert {shape.model for shape in shapes} == {"gpt-5-mini-2025-08-07-FC", "DeepSeek-V3.2-Exp-FC"}
    deepseek = shapes[-1]
    # Input of the first call, plus every reply and result, is the recorded input of the last call.
    assert 1093 + sum(step.output_tokens + step.result_tokens for step in deepseek.steps) == 47_823


def test_sizes_follow_the_recorded_shapes(real_encode):
    for job in build(pick_size(8, 24), real_encode):
        assert_sizes_follow_a_shape(job, real_encode, 1.0)


@pytest.mark.parametrize("scale", [0.25, 2.0])
def test_scale_multiplies_replies_and_results_only(encode, scale):
    whole, scaled = build(6, encode), build(6, encode, scale=scale)
    for before, after in zip(whole, scaled, strict=True):
        assert_sizes_follow_a_shape(after, encode, scale)
        assert (after.id, after.messages, after.tools) == (before.id, before.messages, before.tools)
        assert describe_calls(after) == describe_calls(before)


def test_a_job_is_a_question_with_official_messages_and_tools(encode):
    job = build(1, encode)[0]
    question = {question.id: question for question in read_questions()}[job.id.rsplit("-", 1)[0]]
    assert [message["role"] for message in job.messages] == ["system", "user"]
    assert job.messages[1]["content"] == question.text
    assert job.tools == read_tools()


def test_calls_use_the_question_s_words_and_results_real_fields(encode):
    for job in build(10, encode, seed=4):
        question = job.messages[1]["content"]
        for turn in job.turns[:-1]:
            for call, result in zip(turn.tool_calls, turn.results, strict=True):
                arguments = json.loads(call.arguments)
                if call.name == "search_engine_query":
                    assert all(word in question for word in arguments["keywords"].split())
                    assert all(set(hit) == {"title", "href", "body"} for hit in json.loads(result.content))
                else:
                    assert arguments["url"].startswith("https://example.org/")
                    assert arguments["mode"] == "truncate"
                    assert set(json.loads(result.content)) == {"content"}
                assert result.duration_s > 0
                assert result.error is None
        assert re.fullmatch(r"\{'answer': '[A-Za-z .]+', 'context': '[A-Za-z .]+'\}", job.turns[-1].content)
        assert job.turns[-1].tool_calls == ()


def test_parallel_calls_share_the_steps_result_tokens(encode, monkeypatch):
    step = Step(tools="fs", output_tokens=300, result_tokens=1001)
    shape = Shape(model="m", file="f", id="i", steps=(step,), answer_tokens=50)
    monkeypatch.setattr(web_search, "read_shapes", lambda: (shape,))
    turn = build(1, encode)[0].turns[0]
    assert [call.name for call in turn.tool_calls] == ["fetch_url_content", "search_engine_query"]
    assert [len(encode(result.content)) for result in turn.results] == pytest.approx([501, 500], abs=6)
    assert count_reply_tokens(turn, encode) == pytest.approx(300, abs=3)


def test_a_reply_is_never_below_its_calls(encode):
    for job in build(10, encode, scale=0.01):
        for turn in job.turns[:-1]:
            assert turn.content == ""
            assert len(turn.tool_calls) >= 1


def test_jobs_repeat_with_the_seed_and_differ_between_seeds(encode):
    assert build(5, encode, seed=3) == build(5, encode, seed=3)
    assert build(5, encode, seed=3) != build(5, encode, seed=4)


def test_more_jobs_leave_the_first_ones_as_they_are(encode):
    assert build(9, encode)[:4] == build(4, encode)


def test_the_tokenizer_changes_lengths_only(encode):
    def strip_texts(job):
        turns = [(turn.tool_calls, [result.duration_s for result in turn.results]) for turn in job.turns]
        return dataclasses.replace(job, turns=()), turns

    by_pieces = build(5, encode)
    by_characters = build(5, list)
    assert [strip_texts(job) for job in by_pieces] == [strip_texts(job) for job in by_characters]
    for one, other in zip(by_pieces, by_characters, strict=True):
        for turn, shorter in zip(one.turns[:-1], other.turns[:-1], strict=True):
            assert turn.content.startswith(shorter.content.rstrip("."))


def test_ids_are_unique_when_questions_come_again(encode):
    jobs = build(205, encode, scale=0.01)
    assert len({job.id for job in jobs}) == 205
    assert len({job.messages[1]["content"] for job in jobs}) == 100
    assert [job.arrival_s for job in jobs] == [0.5 * number for number in range(205)]
