from __future__ import annotations

import json

import pytest
from converters.agent_trace_file import find_traces, read_trace
from made_agent_trace import make_request, make_sub_agent, make_trace

from agentcache.errors import InputError


def _write(tmp_path, trace):
    path = tmp_path / "trace_1.json"
    path.write_text(trace if isinstance(trace, str) else json.dumps(trace), encoding="utf-8")
    return path


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
        ({"think_tme": 2.0}, r"requests\[1\]\.think_tme: Extra inputs"),
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


@pytest.mark.parametrize("missing", ["block_size", "tool_tokens", "requests", "id"])
def test_a_missing_field_is_named(tmp_path, missing):
    trace = make_trace([make_request(0, [1])])
    del trace[missing]
    with pytest.raises(InputError, match=rf"trace_1\.json: {missing}: Field required"):
        read_trace(_write(tmp_path, trace))


def test_global_block_ids_are_refused(tmp_path):
    trace = {**make_trace([make_request(0, [1])]), "hash_id_scope": "global"}
    with pytest.raises(InputError, match="hash_id_scope: Input should be 'local'"):
        read_trace(_write(tmp_path, trace))


@pytest.mark.parametrize(("text", "problem"), [("", "Invalid JSON"), ("{", "Invalid JSON"), ("[]", "object")])
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
