"""Recorded tenants in a simulation: they share no blocks, and the report tells how each fared."""

from __future__ import annotations

import json
from pathlib import Path

from made_command import make_settings
from recorded_lines import make_line, write_recording
from shown_page import read_page

from agentcache.sim.command import simulate


def test_tenants_are_played_apart_and_compared(tmp_path: Path) -> None:
    lines = [
        make_line(1000.0 * number, 40, 10, [1, 2, 3, 4, 10 + number], session=str(number), tenant=tenant)
        for number, tenant in enumerate(("red", "blue", "red"))
    ]
    recording = write_recording(tmp_path / "recording.jsonl", *lines)
    status, summary = simulate(make_settings(tmp_path / "out", workload=f"recording:{recording}"))
    assert status == 0
    (figures,) = summary.policies.values()
    assert figures.tenants is not None
    assert set(figures.tenants.job_latency_s) == {"red", "blue"}
    events = [json.loads(line) for line in (tmp_path / "out/events.jsonl").read_text().splitlines()]
    cached = [event["cached_tokens"] for event in events if event["type"] == "request"]
    assert cached[:2] == [0, 0]
    assert cached[2] > 0
    assert "tenant blue" in read_page(tmp_path / "out/report.html")
