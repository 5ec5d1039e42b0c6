"""Spans are found in whatever holds them; other files are told; nothing in a span breaks its reader."""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from recorded_spans import START_S, Writer, ask, count_ns

from agentcache.errors import InputError
from workloads.recording.reader import read_recording


def write_agent() -> Writer:
    """An agent that looks something up: two requests, and a tool between them that names no conversation."""
    writer = Writer()
    agent = writer.add("invoke_agent", 0, 20, gen_ai__operation__name="invoke_agent", gen_ai__usage__input_tokens=3300)
    of = {"gen_ai.conversation.id": "c1"}
    writer.add("chat m", 0, 2, agent, **ask(1500, 50, "tool_calls", **of))
    writer.add("execute_tool", 3, 4, agent, gen_ai__operation__name="execute_tool", gen_ai__tool__name="look")
    writer.add("chat m", 8, 2, agent, **ask(1800, 70, **of))
    return writer


def to_jaeger(span: dict[str, Any]) -> dict[str, Any]:
    def tag(key: str, value: Any) -> dict[str, Any]:
        return {"key": key, "type": "int64", "value": json.dumps(value) if isinstance(value, list) else value}

    return {
        "traceID": span["trace"],
        "spanID": span["id"],
        "operationName": span["name"],
        "references": [{"refType": "CHILD_OF", "traceID": span["trace"], "spanID": span["parent"]}]
        if span["parent"]
        else [],
        "startTime": count_ns(span["began"]) // 1000,
        "duration": round((span["ended"] - span["began"]) * 1e6),
        "tags": [tag(key, value) for key, value in span["attributes"].items()],
        "processID": "p1",
    }


def to_console(span: dict[str, Any]) -> dict[str, Any]:
    """As Python's ConsoleSpanExporter prints it, and Phoenix returns it."""
    began, ended = (datetime.fromtimestamp(START_S + span[side], UTC).isoformat() for side in ("began", "ended"))
    return {
        "name": span["name"],
        "context": {"trace_id": f"0x{span['trace']}", "span_id": f"0x{span['id']}", "trace_state": "[]"},
        "parent_id": f"0x{span['parent']}" if span["parent"] else None,
        "start_time": began.replace("+00:00", "Z"),
        "end_time": ended,
        "status": {"status_code": "UNSET"},
        "attributes": span["attributes"],
        "resource": {"attributes": {"service.name": "shop"}},
    }


def print_console(spans: list[dict[str, Any]]) -> str:
    return "Agent starts\n" + "\n".join(json.dumps(to_console(span), indent=4) for span in spans) + "\nDone.\n"


OTLP = write_agent().list_otlp()
SPANS = write_agent().spans
LISTED = ",\n".join(json.dumps({"resourceSpans": [{"scopeSpans": [each]}]}) for each in OTLP)
CONTAINERS: dict[str, str | bytes] = {
    "lines": "\n".join(json.dumps({"resourceSpans": [{"scopeSpans": [each]}]}) for each in OTLP),
    "one pretty object": json.dumps({"resourceSpans": [{"scopeSpans": OTLP}]}, indent=2),
    "a list of exports": json.dumps([{"resourceSpans": [{"scopeSpans": [each]}]} for each in OTLP]),
    "a list, an export a line": f"[\n{LISTED}\n]",
    "Tempo": json.dumps({"batches": [{"resource": {}, "instrumentationLibrarySpans": OTLP}]}),
    "Tempo's newer API": json.dumps({"trace": {"resourceSpans": [{"scopeSpans": OTLP}]}}),
    "Jaeger": json.dumps({"data": [{"traceID": "t1", "spans": [*map(to_jaeger, SPANS)], "processes": {"p1": {}}}]}),
    "a console": print_console(SPANS),
    "Phoenix": json.dumps({"data": [*map(to_console, SPANS)], "next_cursor": None}),
    "logs and metrics between": "\n".join(
        json.dumps(each)
        for export in OTLP
        for each in (
            {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"traceId": "t1", "timeUnixNano": "5"}]}]}]},
            {"resourceSpans": [{"scopeSpans": [export]}]},
            {"resourceMetrics": [{"dataPoints": [{"startTimeUnixNano": "5", "asInt": "5"}]}]},
        )
    ),
    "PowerShell's encoding": json.dumps({"resourceSpans": [{"scopeSpans": OTLP}]}).encode("utf-16"),
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_spans_are_found_in_whatever_holds_them(container: str, tmp_path: Path) -> None:
    path, content = tmp_path / "export.json", CONTAINERS[container]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    recording = read_recording(path)
    first, second = recording.requests
    assert (first.input_length, second.input_length) == (1500, 1800)
    assert (first.timestamp, first.latency_ms, second.timestamp) == (0.0, 2000.0, 8000.0)
    assert (first.session, first.called, first.end, second.end) == ("c1", ["look"], "calls", "answer")
    assert recording.broken == ()
    assert [*recording.describe_losses()] == ["Spans that are no request and no tool, passed over: 1 (invoke_agent 1)."]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\x1f\x8b\x08\x00", "is compressed; unpack it first, with `gunzip`"),
        (b"PAR1\x15\x04", "is compressed; unpack it first, with `parquet-tools cat --json`"),
        (b"\n\xb2\x0c\n\xff\x80", "is no text, perhaps OTLP's protobuf; have spans exported as JSON"),
        (
            CONTAINERS["one pretty object"][:-90],
            ":1: no whole JSON begins here; if the file was cut off, export it again",
        ),
        (b'{"resourceLogs": []}', 'but what begins {"resourceLogs": []}; trace the model\'s client'),
        (b"Agent starts\nDone.\n", "but what begins Agent starts; trace"),
    ],
)
def test_other_files_are_told_with_a_remedy(content: str | bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as error:
        read_recording(path)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
PARTS = ["traceId", "spanId", "parentSpanId", "name", "startTimeUnixNano", "endTimeUnixNano", "startTime", "duration"]
PARTS += ["start_time", "end_time", "attributes", "tags", "references", "status", "context", "scope"]
SOUND = {"traceId": "t", "startTimeUnixNano": 1, "endTimeUnixNano": 2}


@given(st.lists(st.dictionaries(st.sampled_from(PARTS), JSON).map(lambda changed: SOUND | changed), max_size=3), JSON)
@example([SOUND | {"references": [5], "status": "OK", "parentSpanId": "a", "spanId": "a"}], None)
@example([SOUND | {"start_time": "9999-12-31", "startTimeUnixNano": None}], None)
def test_nothing_in_a_span_breaks_its_reader(spans: list[dict[str, Any]], value: Any) -> None:
    asked = [{"key": key, "value": {"x": each}} for key, each in {**ask(5, 5), "session.id": value}.items()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.json"
        path.write_text(json.dumps([*spans, SOUND | {"attributes": asked}, value]))
        assert read_recording(path).requests[-1].input_length == 5
