from __future__ import annotations

import json

import pytest
from converters.agent_timeline import order_steps
from converters.agent_trace_file import find_traces, read_traces
from converters.left_out import LeftOut
from made_agent_trace import make_request, make_sub_agent, make_trace

from agentcache.errors import InputError


def _write(tmp_path, trace):
    path = tmp_path / "trace_1.json"
    path.write_text(trace if isinstance(trace, str) else json.dumps(trace), encoding="utf-8")
    return path


def read_trace(path, left_out=None):
    [(_, trace)] = read_traces(path, left_out or LeftOut())
    return trace


def test_a_trace_is_read_with_its_sub_agents(tmp_path):
    inner = make_request(0, [7], tail=3)
    trace = read_trace(_write(tmp_path, make_trace([make_request(0, [1, 2]), make_sub_agent(9, [inner])])))
    assert trace.requests[0].prompt_tokens == 128
    assert trace.requests[1].requests[0].hash_ids == [7]


@pytest.mark.parametrize("blocks", [[1], [1, 2]])
def test_the_tail_may_have_an_id_or_none(tmp_path, blocks):
    request = {**make_request(0, blocks), "in": 70}
    assert read_trace(_write(tmp_path, make_trace([request]))).requests[0].hash_ids == blocks


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"in": -1}, r"requests\[1\]\.in: .*greater than or equal to 0"),
        ({"in": "many"}, r"requests\[1\]\.in: .*valid integer"),
        ({"out": None}, r"requests\[1\]\.out: .*valid integer"),
        ({"think_time": -2.0}, r"requests\[1\]\.think_time: .*greater than or equal to 0"),
        ({"hash_ids": [1]}, r"requests\[1\]\.hash_ids: 1 blocks of 64 tokens for a prompt of 200; it needs 3"),
        ({"hash_ids": [1, 2, 3, 4, 5]}, r"requests\[1\]\.hash_ids: 5 blocks"),
        ({"hash_ids": [1, -2, 3]}, r"requests\[1\]\.hash_ids\[1\]: .*greater than or equal to 0"),
        ({"type": "x"}, r"requests\[1\]: .*'x'"),
    ],
)
def test_a_bad_request_is_named_by_file_index_and_field(tmp_path, changes, problem):
    bad = {**make_request(1, [1, 2, 3], tail=8), **changes}
    path = _write(tmp_path, make_trace([make_request(0, [1]), bad]))
    with pytest.raises(InputError, match=rf"trace_1\.json: {problem}") as caught:
        read_trace(path)
    assert "\n" not in str(caught.value)


def test_a_bad_request_of_a_sub_agent_is_named_by_both_indices(tmp_path):
    trace = make_trace([make_sub_agent(1, [make_request(0, [1]), {**make_request(1, [1]), "in": 640}])])
    with pytest.raises(InputError, match=r"requests\[0\]\.requests\[1\]\.hash_ids: 1 blocks"):
        read_trace(_write(tmp_path, trace))


@pytest.mark.parametrize("missing", ["block_size", "requests", "id"])
def test_a_missing_field_is_named(tmp_path, missing):
    trace = make_trace([make_request(0, [1])])
    del trace[missing]
    with pytest.raises(InputError, match=rf"trace_1\.json: {missing}: Field required"):
        read_trace(_write(tmp_path, trace))


def make_published(number, sub_agent_times):
    """As data sets have it: no sizes of system prompts, no kinds of input, no reasons; a field that is not known."""
    fields = ("input_types", "stop")
    requests = [{**make_request(t, [1, 2]), "ttft": 0.4} for t in (0, 100)]
    inner = [make_request(t, [7, 8]) for t in sub_agent_times]
    trace = make_trace([requests[0], make_sub_agent(40, inner, duration_ms=30_000, agent_id="a"), requests[1]])
    trace["id"] = f"session-{number}"
    for each in (trace, *trace["requests"], *inner):
        for field in ("tool_tokens", "system_tokens", *fields):
            each.pop(field, None)
    return trace


def test_published_sessions_stand_one_a_line(tmp_path):
    traces = [make_published(number, (41, 55)) for number in range(3)]
    path = _write(tmp_path, "".join(json.dumps(trace) + "\n" for trace in traces))
    left_out = LeftOut()
    read = dict(read_traces(path, left_out))
    assert [*read] == ["trace_1-1", "trace_1-2", "trace_1-3"]
    assert (read["trace_1-1"].tool_tokens, read["trace_1-1"].requests[0].stop) == (0, "")
    assert [*left_out.describe()] == ["Fields that are not read, passed over: ttft 6, agent_id 3."]
    broken = {**traces[1], "block_size": 0}
    path = _write(tmp_path, "\n".join(map(json.dumps, (traces[0], broken))))
    with pytest.raises(InputError, match=r"trace_1\.json:2: block_size: "):
        dict(read_traces(path, left_out))


@pytest.mark.parametrize(
    ("times", "starts"),
    [((41, 55), [0, 41, 55, 100]), ((0, 14), [0, 10, 24, 100])],
    ids=["of the session", "of the agent, which ended at 40 after 30 s"],
)
def test_a_sub_agents_times_count_from_where_they_can(tmp_path, times, starts):
    trace = read_trace(_write(tmp_path, make_published(0, times)))
    assert [step.start_s for step in order_steps(trace)] == starts


def test_global_block_ids_are_refused(tmp_path):
    trace = {**make_trace([make_request(0, [1])]), "hash_id_scope": "global"}
    with pytest.raises(InputError, match="hash_id_scope: Input should be 'local'"):
        read_trace(_write(tmp_path, trace))


@pytest.mark.parametrize(("text", "problem"), [("", "holds no entries"), ("{", "Invalid JSON"), ("[]", "object")])
def test_what_is_no_trace_is_refused(tmp_path, text, problem):
    with pytest.raises(InputError, match=rf"trace_1\.json: .*{problem}"):
        read_trace(_write(tmp_path, text))


def test_traces_come_by_name_and_other_files_are_passed_over(tmp_path):
    for name in ("trace_b.json", "trace_a.json", "notes.json"):
        (tmp_path / name).touch()
    assert [path.name for path in find_traces(tmp_path)] == ["trace_a.json", "trace_b.json"]


def test_a_folder_without_traces_a_missing_or_packed_file_fails(tmp_path):
    (tmp_path / "traces.tar.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    with pytest.raises(InputError, match=r"holds no trace_\*\.json"):
        find_traces(tmp_path)
    with pytest.raises(InputError, match=r"gone\.json: cannot be read"):
        read_trace(tmp_path / "gone.json")
    with pytest.raises(InputError, match=r"unpack it first"):
        find_traces(tmp_path / "traces.tar.zst")
