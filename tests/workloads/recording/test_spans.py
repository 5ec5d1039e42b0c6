from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.errors import InputError
from workloads.recording.reader import Recording, read_recording
from workloads.recording.sessions import load_sessions
from workloads.recording.span_calls import ModelCall
from workloads.recording.span_file import read_attributes
from workloads.recording.spans import _Tracer
from workloads.recording.threads import list_full_blocks

BLOCK = 512


def make_span(operation: str, began_s: float, took_s: float, session: str | None = "s", **more: Any) -> dict[str, Any]:
    """Written as OTLP's JSON does: whole numbers of 64 bits are text."""
    given = {"gen_ai.operation.name": operation, "gen_ai.conversation.id": session, **more}
    return {
        "traceId": "trace",
        "name": operation,
        "startTimeUnixNano": str(round(1e18 + began_s * 1e9)),
        "endTimeUnixNano": str(round(1e18 + (began_s + took_s) * 1e9)),
        "attributes": [{"key": key, "value": write_value(value)} for key, value in given.items() if value is not None],
    }


def write_value(value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {"arrayValue": {"values": [write_value(each) for each in value]}}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}


def chat(began_s: float, took_s: float, prompt: int, reply: int, reason: str = "stop", **more: Any) -> dict[str, Any]:
    usage = {"gen_ai.usage.input_tokens": prompt, "gen_ai.usage.output_tokens": reply}
    return make_span("chat", began_s, took_s, **usage, **{"gen_ai.response.finish_reasons": [reason]}, **more)


def tool(began_s: float, name: str, **more: Any) -> dict[str, Any]:
    return make_span("execute_tool", began_s, 1.0, **{"gen_ai.tool.name": name}, **more)


def write_spans(path: Path, *spans: dict[str, Any]) -> Path:
    lines = [json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}) for span in spans]
    path.write_text("\n".join(lines))
    return path


def read(path: Path, *spans: dict[str, Any]) -> Recording:
    return read_recording(write_spans(path / "spans.jsonl", *spans))


def test_a_conversation_grows_by_what_its_lengths_tell(tmp_path: Path) -> None:
    # Lines come in any order.
    first, second = read(
        tmp_path, chat(10, 1, 2000, 5), tool(3.5, "look"), chat(0, 3, 1000, 600, "tool_calls")
    ).requests
    assert (first.timestamp, first.latency_ms, second.timestamp) == (0.0, 3000.0, 10_000.0)
    assert list_full_blocks(first, BLOCK) == second.hash_ids[:3]
    assert len(second.hash_ids) == 4
    assert (first.called, first.end) == (["look"], "calls")
    assert (second.called, second.end) == ([], "answer")


def test_a_prompt_without_the_reply_repeats_the_prompt_alone(tmp_path: Path) -> None:
    first, second, third = read(tmp_path, chat(0, 1, 1024, 900), chat(2, 1, 1500, 10), chat(4, 1, 600, 10)).requests
    assert second.hash_ids[:2] == first.hash_ids
    assert not {*second.hash_ids[2:]} & {*first.hash_ids, *first.reply_ids}
    assert not {*third.hash_ids} & {*first.hash_ids, *second.hash_ids}, "shorter: the history was rewritten"


def test_calls_at_once_are_threads_of_their_own(tmp_path: Path) -> None:
    path = write_spans(
        tmp_path / "s.jsonl", chat(0, 5, 1000, 100), chat(1, 1, 600, 50), chat(3, 1, 700, 50), chat(9, 1, 1200, 9)
    )
    jobs = load_sessions(path, jobs=None, max_context=None, max_gap_s=None).jobs
    assert [[turn.context.tokens for turn in job.turns if turn.context] for job in jobs] == [[1000, 1200], [600, 700]]


def test_agents_that_take_turns_are_threads_of_their_own(tmp_path: Path) -> None:
    main, sub = {"gen_ai.agent.id": "main"}, {"agent_id": "sub"}
    calls = chat(0, 1, 1000, 100, **main), chat(2, 1, 2000, 50, **sub), chat(4, 1, 2200, 9, **main)
    first, second, third = read(tmp_path, *calls).requests
    assert first.session == second.session == third.session
    assert first.hash_ids[:1] == third.hash_ids[:1]
    assert not {*second.hash_ids} & {*third.hash_ids}


def test_jobs_wait_for_tools_and_for_people(tmp_path: Path) -> None:
    spans = (chat(0, 1, 600, 5, "tool_calls"), tool(1.5, "look"), chat(4, 1, 700, 5), chat(65, 1, 800, 5))
    loaded = load_sessions(write_spans(tmp_path / "s", *spans), jobs=None, max_context=None, max_gap_s=None)
    called, answered, _ = loaded.jobs[0].turns
    assert [call.name for call in called.tool_calls] == ["look"]
    assert called.results[0].duration_s == pytest.approx(3.0)
    assert answered.pause_s == pytest.approx(60.0)
    assert "each prompt is taken to extend" in loaded.notes[0]


def test_without_an_id_a_trace_is_the_conversation(tmp_path: Path) -> None:
    found = read(tmp_path, chat(0, 1, 600, 5, session=None), chat(2, 1, 700, 5, session=None)).requests
    assert {line.session for line in found} == {"trace"}


@pytest.mark.parametrize(
    ("reason", "more", "end"),
    [
        ("stop", {}, "answer"),
        ("length", {}, "length"),
        ("abort", {}, "aborted"),
        ("tool_use", {}, "calls"),
        ("stop", {"error.type": "timeout"}, "failed"),
    ],
)
def test_ends_are_told_apart(reason: str, more: dict[str, Any], end: str, tmp_path: Path) -> None:
    (line,) = read(tmp_path, chat(0, 1, 600, 5, reason, **more)).requests
    assert line.end == end
    assert bool(line.called) == (end == "calls")


def test_sums_and_other_spans_are_no_requests(tmp_path: Path) -> None:
    usage = {"gen_ai.usage.input_tokens": 9000, "gen_ai.usage.output_tokens": 10}
    found = read(
        tmp_path, make_span("invoke_agent", 0, 9, **usage), make_span("embeddings", 0, 9, **usage), chat(0, 1, 600, 5)
    )
    assert [line.input_length for line in found.requests] == [600]
    assert found.broken == ()


def test_broken_spans_are_told_by_line_and_left_out(tmp_path: Path) -> None:
    usage = "gen_ai.usage.input_tokens"
    spans = [
        chat(0, 1, 600, 5),
        make_span("chat", 0, 1),
        make_span("chat", 0, 1, **{usage: "many"}),
        {**chat(0, 1, 600, 5), "endTimeUnixNano": "7"},
        {**chat(0, 1, 600, 5), "attributes": 5},
    ]
    path = write_spans(tmp_path / "s.jsonl", *spans)
    path.write_text(path.read_text() + '\n{"resourceSpans": 5}\n{"resourceSpans": [\n')
    found = read_recording(path)
    assert len(found.requests) == 1
    problems = sorted(text.removeprefix(f"{path}:") for text in found.broken)
    assert problems[:2] == [
        f"2: {usage}: is missing; the instrumentation must record it",
        f'3: {usage}: is "many", not a whole number from 0 to 10000000',
    ]
    assert problems[2].startswith("4: endTimeUnixNano: 7 is before")
    assert problems[3] == "5: attributes: is no list of keys and values"
    assert problems[4:] == ["7: no whole JSON begins here; if the file was cut off, export it again"]


def test_nesting_without_end_is_a_broken_line(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text('{"resourceSpans":' + "[" * 100_000 + "\n")
    with pytest.raises(InputError, match=r"s\.jsonl:1: no whole JSON begins here"):
        read_recording(path)
    value: dict[str, Any] = {}
    for _ in range(2000):
        value = {"arrayValue": {"values": [value]}}
    with pytest.raises(InputError, match="attributes: is no list of keys and values"):
        read_attributes({"attributes": [{"key": "k", "value": value}]})


@pytest.mark.parametrize("digits", [19, 5000])
def test_numbers_beyond_64_bits_are_refused(digits: int, tmp_path: Path) -> None:
    late = {**chat(0, 1, 600, 5), "endTimeUnixNano": "9" * digits}
    (problem,) = read(tmp_path, chat(0, 1, 600, 5), late).broken
    assert "endTimeUnixNano: is " in problem


def test_a_file_without_calls_is_refused(tmp_path: Path) -> None:
    path = write_spans(tmp_path / "s.jsonl", make_span("embeddings", 0, 1))
    with pytest.raises(
        InputError, match=r"span of a request with gen_ai\.usage\.input_tokens .* but embeddings 1; trace"
    ):
        read_recording(path)


CALLS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 6), st.integers(1, 4000), st.integers(0, 1500)), max_size=12
)


@given(CALLS)
def test_blocks_are_as_many_as_lengths_need(calls: list[tuple[int, int, int, int]]) -> None:
    made = [
        ModelCall("s", began, began + took, "m", prompt, reply, (), failed=False)
        for began, took, prompt, reply in sorted(calls)
    ]
    tracer = _Tracer(0)
    for line in map(tracer.make_line, made):
        assert len(line.hash_ids) == -(-line.input_length // BLOCK)
        full = (line.input_length + line.output_length) // BLOCK
        assert len(list_full_blocks(line, BLOCK)) == full
        assert len({*line.hash_ids, *line.reply_ids}) == len([*line.hash_ids, *line.reply_ids])
