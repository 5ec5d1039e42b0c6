from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_command import make_settings

from agentcache.errors import InputError
from agentcache.report.events import read_events
from agentcache.report.policy_run import group_by_policy
from agentcache.sim.command import simulate

pytestmark = pytest.mark.usefixtures("without_plots")

_CALL = {"type": "function", "function": {"name": "book", "arguments": "{}"}}
_TEXT_CALL = '<tool_call>{"name": "search", "arguments": {}}</tool_call>'


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


MAKERS: dict[str, Callable[[Path], None]] = {
    "bfcl_multi_turn": _make_shapes,
    "tau_bench": _make_runs,
    "webdancer": _make_trajectories,
    "lmcache": _make_requests,
}


@pytest.mark.parametrize("kind", MAKERS)
def test_recorded_agents_run_from_end_to_end(tmp_path: Path, kind: str) -> None:
    MAKERS[kind](tmp_path / "data")
    settings = make_settings(tmp_path / "out", workload=f"{kind}:{tmp_path / 'data'}", kv_tokens=50_000)
    status, summary = simulate(settings)
    figures = summary.policies["lru"]
    assert (status, figures.finished, figures.turns) == (0, 2, 6)
    assert figures.token_hit_rate
    assert len(group_by_policy(read_events(tmp_path / "out"))["lru"].tool_calls) == (4 if kind == "lmcache" else 2)


def test_a_job_beyond_the_cache_is_to_be_left_out(tmp_path: Path) -> None:
    _make_runs(tmp_path / "data")
    with pytest.raises(InputError, match=r"--kv-tokens: job task-0-trial-. needs .*, or leave the job out"):
        simulate(make_settings(tmp_path / "out", workload=f"tau_bench:{tmp_path / 'data'}", kv_tokens=32))
