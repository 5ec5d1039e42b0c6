from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentcache.errors import InputError
from agentcache.jobs.settings import CONVERTED, WORKLOADS, JobSettings


def refusal(**fields: Any) -> str:
    with pytest.raises(InputError) as caught:
        JobSettings(**fields).check()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("workload", "text"),
    [
        ("chat", "workload chat: unknown; choose from bfcl, recording:PATH"),
        ("chat:here", "workload chat: unknown; choose from bfcl"),
        ("bfcl:here", "workload bfcl:here: bfcl takes no path; leave it out"),
        ("recording", "workload recording: needs a path, recording:PATH: a recording"),
        ("recording:", "workload recording: needs a path, recording:PATH"),
        ("recording:no/such", "workload recording: there is no no/such; give a recording"),
    ],
)
def test_a_workload_is_a_known_name_with_the_path_that_it_needs(workload: str, text: str) -> None:
    assert refusal(workload=workload).startswith(text)


@pytest.mark.parametrize("kind", CONVERTED)
def test_a_trace_of_others_is_answered_with_the_command(kind: str) -> None:
    assert f"with `python benchmarks/convert.py {kind} a/b --out FILE.jsonl`" in refusal(workload=f"{kind}:a/b")
    assert f"convert.py {kind} PATH " in refusal(workload=kind)


@pytest.mark.parametrize(
    ("kind", "given", "text"),
    [
        ("recording", {"tool_latency": "2"}, "--tool-latency: only for bfcl"),
        ("recording", {"arrival": "even"}, "--arrival: only for bfcl"),
        ("bfcl", {"max_gap_s": 3.0}, "--max-gap: only for recording"),
        ("bfcl", {"max_context": 9}, "--max-context: only for recording"),
        ("bfcl", {"seed": -1}, "--seed -1: give 0 or more"),
        ("bfcl", {"jobs": 0}, "--jobs 0: give at least 1"),
        ("bfcl", {"rate": 0.0}, "--rate 0: give a number above 0, jobs per second"),
        ("bfcl", {"rate": float("nan")}, "--rate nan: give a number above 0"),
        ("bfcl", {"scale": float("inf")}, "--scale inf: give a number above 0"),
        ("recording", {"max_context": 0}, "--max-context 0: give at least 1"),
        ("recording", {"max_gap_s": -0.5}, "--max-gap -0.5: give at least 0"),
        ("bfcl", {"tool_latency": "soon"}, "--tool-latency soon: 'soon' is not a number"),
        ("recording", {"scale": 0.5}, "--scale: only for bfcl"),
        ("recording", {"tool_latency": "1"}, "--tool-latency: only for bfcl"),
    ],
)
def test_options_that_cannot_work_are_refused_by_their_flag(
    tmp_path: Path, kind: str, given: dict[str, Any], text: str
) -> None:
    workload = f"{kind}:{tmp_path}" if WORKLOADS[kind].path else kind
    assert refusal(workload=workload, **given).startswith(text)


@pytest.mark.parametrize("kind", WORKLOADS)
def test_what_a_workload_takes_by_itself_can_be_given(tmp_path: Path, kind: str) -> None:
    workload = f"{kind}:{tmp_path}" if WORKLOADS[kind].path else kind
    defaults: dict[str, Any] = dict(WORKLOADS[kind].options)
    JobSettings(workload=workload).check()
    JobSettings(workload=workload, **defaults).check()
    assert JobSettings(workload=workload).options() == defaults


def test_given_options_go_over_those_of_the_workload(tmp_path: Path) -> None:
    settings = JobSettings(workload=f"recording:{tmp_path}", jobs=3, max_gap_s=0.0)
    settings.check()
    assert settings.options() == {**WORKLOADS["recording"].options, "jobs": 3, "max_gap_s": 0.0}
    assert settings.path == tmp_path
