"""Numbers in files that cannot be what they say: refused by file, line and field, before they cost memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from converters.agent_trace_file import read_traces
from converters.left_out import LeftOut
from recorded_lines import HEADER, make_line

from agentcache.errors import InputError
from agentcache.policy.cost import read_profile
from agentcache.policy.presets import find_cost_profile
from tool_runtime.learning.durations_file import load_durations
from workloads.recording.reader import read_recording

Read = Callable[[Path], object]
HUGE = 2**62


def _recorded(**changes: Any) -> str:
    header = {**HEADER, **changes.pop("header", {})}
    return json.dumps({"recording": header, **make_line(0, 5, 5, [1], **changes)})


def _span(**counts: int) -> str:
    usage = {"gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 10, **counts}
    attributes = [{"key": key, "value": {"intValue": str(value)}} for key, value in usage.items()]
    attributes.append({"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}})
    span = {"traceId": "t", "startTimeUnixNano": "1", "endTimeUnixNano": "2", "attributes": attributes}
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})


def _trace(**changes: Any) -> str:
    request = {
        "type": "n",
        "t": 0.0,
        "in": 5,
        "out": 5,
        "hash_ids": [1],
        "input_types": [],
        "stop": "",
        "api_time": 1.0,
    }
    trace = {"id": "a", "block_size": 10, "tool_tokens": 0, "system_tokens": 0}
    of_trace = {name: changes.pop(name) for name in trace if name in changes}
    return json.dumps({**trace, **of_trace, "requests": [{**request, **changes}]})


RECORDED = (read_recording, _recorded)
TRACE = (lambda path: dict(read_traces(path, LeftOut())), _trace)


@pytest.mark.parametrize(
    ("kind", "changes", "place"),
    [
        (RECORDED, {"input_length": HUGE}, ":1: input_length: "),
        (RECORDED, {"output_length": 10**400}, ":1: output_length: "),
        (RECORDED, {"hash_ids": [2**63]}, ":1: hash_ids[0]: "),
        (RECORDED, {"latency_ms": 1e308}, ":1: latency_ms: "),
        (RECORDED, {"header": {"block_tokens": HUGE}}, ":1: recording: block_tokens: "),
        ((read_recording, _span), {"gen_ai.usage.input_tokens": HUGE}, ":1: gen_ai.usage.input_tokens: is 46116"),
        ((read_recording, _span), {"gen_ai.usage.output_tokens": 10**8}, ":1: gen_ai.usage.output_tokens: is 1000"),
        (TRACE, {"out": HUGE}, ": requests[0].out: "),
        (TRACE, {"api_time": 1e308}, ": requests[0].api_time: "),
        (TRACE, {"block_size": HUGE}, ": block_size: "),
        (TRACE, {"system_tokens": HUGE}, ": system_tokens: "),
    ],
)
def test_a_number_too_large_is_refused_by_file_and_field(
    kind: tuple[Read, Callable[..., str]], changes: dict[str, Any], place: str, tmp_path: Path
) -> None:
    (read, write), path = kind, tmp_path / "f.jsonl"
    path.write_text(write(**changes))
    with pytest.raises(InputError) as error:
        read(path)
    assert f"{path}{place}" in str(error.value)
    assert len(str(error.value)) < len(str(path)) + 400


def test_one_span_too_large_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_text(f"{_span()}\n{_span(**{'gen_ai.usage.input_tokens': HUGE})}\n")
    recording = read_recording(path)
    assert len(recording.requests) == 1
    assert recording.broken[0].endswith("is 4611686018427387904, not a whole number from 0 to 10000000")


@pytest.mark.parametrize("end", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_a_start_at_the_end_of_time_is_refused(end: str, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(_recorded())
    (tmp_path / "r-rank1.jsonl").write_text(_recorded(header={"started_at": end}))
    with pytest.raises(InputError, match=r"r-rank1\.jsonl:1: recording\.started_at: is"):
        read_recording(path)


def test_a_profile_of_a_cache_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    profile = {**find_cost_profile("llama-3.1-8b", "h200").model_dump(mode="json"), "kv_tokens": HUGE}
    path.write_text(json.dumps(profile))
    with pytest.raises(InputError, match=r"profile\.json: not a cost profile: kv_tokens: Input should be less"):
        read_profile(path)


def test_durations_beyond_any_clock_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "durations"
    record = {"tool": "look", "command": "", "count": 1, "total_s": 1.0, "samples": [[1e300, 0.0, True]]}
    path.write_text(json.dumps({"format": "agentcache durations", "version": 1, "records": [record]}))
    states, problem = load_durations(path)
    assert states == []
    assert problem is not None
    assert "records.0.samples.0.0" in problem
