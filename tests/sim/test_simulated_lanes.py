"""Simulations of several closed loops in one command."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_command import make_settings
from made_recordings import make_session, write_sessions
from shown_page import read_page

from agentcache.cli import main
from agentcache.report.content import HTML_FILE
from agentcache.report.events import EVENTS_FILE, read_run_record
from agentcache.report.summary import Summary
from agentcache.run.checks import list_lanes
from agentcache.sim.command import simulate, simulate_all
from agentcache.sim.settings import SimulationSettings

pytestmark = pytest.mark.usefixtures("without_plots")

LOOP = {"duration_s": 30.0, "warm_up": 1, "kv_tokens": 40_000}


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    turns = [[tuple(range(1, 20 + 10 * turn)) for turn in range(10 + number)] for number in range(4)]
    made = (make_session(number, *prompts, output=40, wait_s=2.0) for number, prompts in enumerate(turns))
    return write_sessions(tmp_path / "sessions.jsonl", made)


def test_each_number_is_simulated_as_it_is_alone(sessions: Path, tmp_path: Path) -> None:
    settings = make_settings(tmp_path / "all", workload=f"recording:{sessions}", concurrency=1, **LOOP)
    status, summaries = simulate_all(list_lanes(settings, [1, 3]))
    assert (status, len(summaries)) == (0, 2)
    for lanes in (1, 3):
        alone = tmp_path / f"alone-{lanes}"
        simulate(make_settings(alone, workload=f"recording:{sessions}", concurrency=lanes, **LOOP))
        assert (alone / EVENTS_FILE).read_bytes() == (tmp_path / "all" / f"lanes-{lanes}" / EVENTS_FILE).read_bytes()


def test_one_command_makes_one_report_of_all_lanes(
    sessions: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = ["--duration=30", "--warm-up=1", "--kv-tokens=40000", "--policy=vllm", "--policy=lru", f"--out={out}"]
    # The workload behind the numbers is not one of them.
    assert main(["simulate", "--concurrency", "1", "3", f"recording:{sessions}", *options]) == 0
    assert [read_run_record(out / name).lanes for name in ("lanes-1", "lanes-3")] == [1, 3]
    text = read_page(out / HTML_FILE)
    for row in ("| 1 | vllm |", "| 1 | lru |", "| 3 | vllm |", "| 3 | lru |"):
        assert row in text
    shown = capfd.readouterr().out
    assert "infinite" in shown
    assert f"report: {out}/report.html" in shown


def test_ctrl_c_ends_all_numbers_of_lanes(sessions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int | None] = []

    def interrupted(settings: SimulationSettings) -> tuple[int, Summary]:
        begun.append(settings.jobs.concurrency)
        return 130, Summary(policies={}, run={})

    monkeypatch.setattr("agentcache.sim.command.simulate", interrupted)
    settings = make_settings(tmp_path / "out", workload=f"recording:{sessions}", concurrency=1, **LOOP)
    status, summaries = simulate_all(list_lanes(settings, [1, 3]))
    assert (status, len(summaries), begun) == (130, 1, [1])


@pytest.mark.parametrize("numbers", [["4"], ["4", "8"]], ids=len)
def test_lanes_are_for_closed_loops_only(tmp_path: Path, capfd: pytest.CaptureFixture[str], numbers: list[str]) -> None:
    out = tmp_path / "out"
    assert main(["simulate", "bfcl", "--policy=lru", f"--out={out}", "--concurrency", *numbers]) == 2
    assert capfd.readouterr().err == "agentcache: --concurrency: only for recording\n"
    assert not out.exists()
