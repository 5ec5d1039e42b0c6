"""A trace of others is converted and simulated from end to end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from convert import convert
from converters.chat_sessions import tokenize
from converters.recorded import write_sessions
from made_agent_trace import make_request, make_trace, write_traces
from made_command import make_settings
from made_job import CharacterTokenizer

from agentcache.errors import InputError
from agentcache.jobs.recorded_job import PromptWriter, record_text
from agentcache.report.events import read_events
from agentcache.report.policy_run import group_by_policy
from agentcache.sim.command import simulate
from tool_runtime.agent.job import Job, ToolCall, ToolResult, Turn
from workloads.recording.reader import read_recording

pytestmark = pytest.mark.usefixtures("without_plots")

_CALL = {"type": "function", "function": {"name": "book", "arguments": "{}"}}
_TEXT_CALL = '<tool_call>{"name": "search", "arguments": {}}</tool_call>'


def _make_agent_traces(path: Path) -> None:
    path.mkdir()
    requests = [make_request(5 * turn, range(1 + turn), 9) for turn in range(3)]
    write_traces(path, *[make_trace(requests, tool_tokens=64)] * 2)


def _make_shapes(path: Path) -> None:
    calling = {"tools": ["ls"], "tool_result_chars": [40], "output_tokens": 30}
    answer = {"tools": [], "tool_result_chars": [], "output_tokens": 20}
    turns = [{"steps": [calling, answer]}, {"steps": [answer]}]
    _write(path, *({"model": model, "id": "multi_turn_base_0", "turns": turns} for model in "ab"))


def _make_runs(path: Path) -> None:
    chat: list[dict[str, Any]] = [
        {"role": "system", "content": "Airline."},
        {"role": "user", "content": "Book."},
        {"role": "assistant", "content": None, "tool_calls": [_CALL]},
        {"role": "tool", "content": "done"},
        {"role": "assistant", "content": "Booked. More?"},
        {"role": "user", "content": "No."},
        {"role": "assistant", "content": "Bye."},
    ]
    path.write_text(json.dumps([{"task_id": 0, "trial": trial, "traj": chat} for trial in (0, 1)]))


def _make_trajectories(path: Path) -> None:
    texts = ("Search.", "Who?", f"Hm. {_TEXT_CALL}", "<tool_response>\nten\n</tool_response>", "Which?", "One.", "Ann")
    roles = ("system", "user", "assistant", "user", "assistant", "user", "assistant")
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    _write(path, *[{"messages": messages, "functions": []}] * 2)


def _make_documents(path: Path) -> None:
    pairs = [{"Q": f"Who is {name}?", "A": name} for name in ("Ann", "Ben", "Cem")]
    text = "It is a long text. " * 20
    _write(path, *({"input": f"{text}{part}", "qa_pairs": repr(pairs), "output": None} for part in "ab"))


def _make_singles(path: Path) -> None:
    sizes = {"input_length": 600, "output_length": 7, "hash_ids": [1, 2]}
    _write(path, *({"timestamp": 1000 * number, **sizes} for number in range(6)))


def _make_requests(path: Path) -> None:
    task = "Look at this. " * 20
    prompts = (task, "Another agent asks. " * 20, f"{task}It is new.")
    _write(
        path,
        *(
            {"timestamp": number * 10**6, "input": prompt, "output": "Yes.", "session_id": session}
            for session in "ab"
            for number, prompt in enumerate(prompts)
        ),
    )


def _write(path: Path, *entries: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


# A maker of a trace each, with its jobs, requests and tool calls.
MADE: dict[str, tuple[Callable[[Path], None], int, int, int]] = {
    "agent_traces": (_make_agent_traces, 2, 6, 4),
    "mooncake": (_make_singles, 6, 6, 0),
    "conversation": (_make_documents, 2, 6, 0),
    "bfcl_multi_turn": (_make_shapes, 2, 6, 2),
    "tau_bench": (_make_runs, 2, 6, 2),
    "webdancer": (_make_trajectories, 2, 6, 2),
    "lmcache": (_make_requests, 2, 6, 4),
}


@pytest.mark.parametrize("kind", MADE)
def test_a_trace_runs_from_end_to_end(tmp_path: Path, kind: str) -> None:
    make, jobs, turns, calls = MADE[kind]
    make(tmp_path / "data")
    convert([kind, str(tmp_path / "data"), "--out", str(tmp_path / "r.jsonl")])
    settings = make_settings(tmp_path / "out", workload=f"recording:{tmp_path / 'r.jsonl'}", kv_tokens=50_000)
    status, summary = simulate(settings)
    figures = summary.policies["lru"]
    assert (status, figures.finished, figures.turns) == (0, jobs, turns)
    assert figures.token_hit_rate
    assert len(group_by_policy(read_events(tmp_path / "out"))["lru"].tool_calls) == calls


@pytest.mark.parametrize("kind", MADE)
def test_a_file_that_is_missing_leaves_nothing(tmp_path: Path, kind: str) -> None:
    with pytest.raises(InputError, match="gone: cannot be read"):
        convert([kind, str(tmp_path / "gone"), "--out", str(tmp_path / "r.jsonl")])
    assert not list(tmp_path.iterdir())


def test_a_chat_has_the_sizes_and_waits_of_its_tokens(tmp_path: Path) -> None:
    tokenizer = CharacterTokenizer()
    call = ToolCall("look", "{}")
    calling = Turn("Hm.", (call, call), (ToolResult("ten", 2.0), ToolResult("four", 5.0)))
    asked = {"role": "user", "content": "And?"}
    turns = (calling, Turn("Ann", pause_s=7.0, said=(asked,)), Turn("Ben"))
    job = Job("job", ({"role": "user", "content": "Who?"},), turns=turns)
    write_sessions(tmp_path / "r.jsonl", tokenize([job], tokenizer), kind="chat")
    lines = read_recording(tmp_path / "r.jsonl").requests
    (recorded,) = record_text([job], tokenizer)
    assert [line.input_length for line in lines] == [*map(len, PromptWriter(tokenizer).write(recorded))]
    assert [line.output_length for line in lines] == [*map(len, recorded.replies)]
    assert [(line.timestamp, line.called, line.end) for line in lines] == [
        (0, ["look", "look"], "calls"),
        (5000, [], "answer"),
        (12_000, [], "answer"),
    ]
    first, second = lines[:2]
    known = (first.input_length + first.output_length) // 16
    assert second.hash_ids[:known] == [*first.hash_ids, *first.reply_ids][:known]
