from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_command import make_settings

from agentcache.errors import InputError
from agentcache.report.events import read_events
from agentcache.report.policy_run import group_by_policy
from agentcache.sim.command import simulate

pytestmark = pytest.mark.usefixtures("without_plots")


def _make_shapes(path: Path) -> None:
    calling = {"tools": ["ls"], "tool_result_chars": [40], "output_tokens": 30}
    answer = {"tools": [], "tool_result_chars": [], "output_tokens": 20}
    turns = [{"steps": [calling, answer]}, {"steps": [answer]}]
    _write(path, *({"model": model, "id": "multi_turn_base_0", "turns": turns} for model in "ab"))


def _write(path: Path, *entries: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def test_recorded_agents_run_from_end_to_end(tmp_path: Path) -> None:
    _make_shapes(tmp_path / "data")
    settings = make_settings(tmp_path / "out", workload=f"bfcl_multi_turn:{tmp_path / 'data'}", kv_tokens=50_000)
    status, summary = simulate(settings)
    figures = summary.policies["lru"]
    assert (status, figures.finished, figures.turns) == (0, 2, 6)
    assert figures.token_hit_rate
    assert len(group_by_policy(read_events(tmp_path / "out"))["lru"].tool_calls) == 2


def test_a_job_beyond_the_cache_is_to_be_left_out(tmp_path: Path) -> None:
    _make_shapes(tmp_path / "data")
    with pytest.raises(InputError, match=r"--kv-tokens: job .* needs .*, or leave the job out"):
        simulate(make_settings(tmp_path / "out", workload=f"bfcl_multi_turn:{tmp_path / 'data'}", kv_tokens=32))
