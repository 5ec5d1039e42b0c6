"""What `benchmarks/add_runs.py` makes of a run's summary."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import add_runs
import pytest
from result_lines import read_runs

SUMMARY: dict[str, Any] = {
    "run": {
        "command": "agentcache simulate recording:loop.jsonl",
        "started_at": "2026-11-30T09:17:14+00:00",
        "workload": "recording:loop.jsonl",
        "model": "llama-3.1-8b",
        "device": "simulated NVIDIA H200 (measured cost model)",
        "seed": 572,
        "jobs": 32,
        "lanes": 32,
        "cache_tokens": 500_000,
        "settings": {"duration_s": 600.0, "warm_up": 1, "cpu_tokens": 250_000, "cpu_lazy": True},
        "versions": {"vllm": "0.32.0"},
    },
    "policies": {
        "vllm": {
            "job_latency_s": {"mean": None},
            "ttft_s": {"p99": 143.51234},
            "tpot_s": {"mean": 0.0174321},
            "token_hit_rate": 0.048123,
            "turns": 129,
            "throughput": {"total_tok_s": 13_337.04, "normalized_p50": 1.3},
        }
    },
}


def add(monkeypatch: pytest.MonkeyPatch, folder: Path, summary: dict[str, Any], *options: str) -> None:
    (folder / "summary.json").write_text(json.dumps(summary))
    arguments = ["add_runs.py", str(folder), "--results", str(folder), "--file", "loops", "--commit", "add2168"]
    monkeypatch.setattr(sys, "argv", [*arguments, *options])
    add_runs.main()


def test_a_summary_becomes_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    add(monkeypatch, tmp_path, SUMMARY, "--workload", "claude-code", "--flag", "order.reserve=0")
    (run,) = read_runs(tmp_path)["loops"]
    assert (run.date, run.where, run.seeds, run.workload) == ("2026-11-30", "simulated: H200", [572], "claude-code")
    assert run.flags == ["lazy CPU cache", "order.reserve=0"]
    assert run.parameters == {
        "measured_s": 600.0,
        "warm_up": 1,
        "lanes": 32,
        "cache_tokens": 500_000,
        "cpu_cache_tokens": 250_000,
    }
    assert run.figures == {
        "ttft_p99_s": 143.512,
        "tpot_ms": 17.43,
        "hit_rate": 0.0481,
        "turns": 129,
        "tok_s": 13_337.0,
        "tok_s_user_p50": 1.3,
    }


def test_runs_are_added_behind_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured = SUMMARY | {"run": SUMMARY["run"] | {"device": "NVIDIA H200", "settings": {}, "lanes": None}}
    add(monkeypatch, tmp_path, SUMMARY)
    add(monkeypatch, tmp_path, measured, "--cpu-tokens", "7")
    first, second = read_runs(tmp_path)["loops"]
    assert (first.where, second.where) == ("simulated: H200", "GPU: H200")
    assert second.parameters == {"jobs": 32, "cache_tokens": 500_000, "cpu_cache_tokens": 7}


def test_a_malformed_run_adds_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="commit"):
        add(monkeypatch, tmp_path, SUMMARY, "--commit", "main")
    assert read_runs(tmp_path) == {}
