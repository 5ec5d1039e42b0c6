"""Replays of several closed loops in one command, against a server that keeps its cache between them."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer
from made_job import CharacterTokenizer
from made_recordings import BLOCK, make_short_sessions
from made_settings import make_settings
from shown_page import read_page

from agentcache.cli import main
from agentcache.errors import InputError
from agentcache.jobs.loader import load_all
from agentcache.jobs.settings import JobSettings
from agentcache.replay import command
from agentcache.report.content import HTML_FILE, SUMMARY_FILE
from agentcache.report.events import RUN_FILE, read_events, read_run_record
from agentcache.report.summary import Summary
from agentcache.run.checks import list_lanes
from agentcache.run.folder import ENGINE_LOG
from tool_runtime.agent.job import Context

pytestmark = pytest.mark.usefixtures("without_plots")

REPORT = {SUMMARY_FILE, HTML_FILE}


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    return make_short_sessions(tmp_path / "sessions.jsonl", (8, 9, 10))


def replay(server: FakeServer, sessions: Path, out: Path, *options: str) -> int:
    jobs = ["--warm-up=1", f"recording:{sessions}"]
    return main(["replay", "--base-url", server.url, "--out", str(out), "--duration=0.4", *options, *jobs])


def test_each_number_has_a_folder_and_all_have_one_report(
    server: FakeServer, sessions: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert replay(server, sessions, out, "--concurrency", "1", "2") == 0
    assert [read_run_record(out / name).lanes for name in ("lanes-1", "lanes-2")] == [1, 2]
    # The log of the one server is in the first folder.
    assert {path.name for path in (out / "lanes-1").iterdir()} >= REPORT | {ENGINE_LOG}
    assert {path.name for path in out.iterdir()} == REPORT | {"lanes-1", "lanes-2"}
    text = read_page(out / HTML_FILE)
    assert "Closed loops of 1 and 2 lanes" in text
    assert "| 1 | server |" in text
    assert "| 2 | server |" in text
    shown = capfd.readouterr().out
    assert f"report: {out}/report.html" in shown
    assert "On the front of throughput and interactivity: server with" in shown
    assert shown.index("lanes-1") < shown.index("lanes-2")


def test_a_report_is_written_before_the_next_number_begins(
    server: FakeServer, sessions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, reported = command._begin, []

    def note_report(*arguments: Any) -> None:
        reported.append((tmp_path / "lanes-1" / SUMMARY_FILE).exists())
        begin(*arguments)

    monkeypatch.setattr(command, "_begin", note_report)
    assert replay(server, sessions, tmp_path, "--concurrency", "1", "2") == 0
    assert reported == [False, True]


def test_a_loop_finds_nothing_that_the_last_one_cached(server: FakeServer, sessions: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert replay(server, sessions, out, "--concurrency", "2", "1") == 0
    jobs: list[set[str]] = []
    for name in ("lanes-2", "lanes-1"):
        requests = [event for event in read_events(out / name) if event.type == "request"]
        assert {request.cached_tokens for request in requests if request.turn == 0} == {0}
        assert any(request.cached_tokens for request in requests)
        jobs.append({request.job for request in requests})
    assert not jobs[0] & jobs[1]


def test_samples_of_a_rollout_find_their_first_prompt(server: FakeServer, sessions: Path, tmp_path: Path) -> None:
    assert replay(server, sessions, tmp_path, "--concurrency", "1", "--rollout", "3") == 0
    requests = [event for event in read_events(tmp_path) if event.type == "request" and event.turn == 0]
    # The first session began midway.
    shared = [(request.job.rpartition("-sample-")[2], request.infinite_tokens) for request in requests[1:]]
    assert {tokens for sample, tokens in shared if sample in ("1", "2")} == {2 * BLOCK}
    assert {tokens for sample, tokens in shared if sample not in ("1", "2")} <= {0}
    loop = Summary.model_validate_json((tmp_path / SUMMARY_FILE).read_bytes()).policies["server"].throughput
    assert loop is not None
    assert (loop.turns_per_min or 0) > 0
    assert loop.gpu_s_per_job == pytest.approx(loop.window_s / (loop.jobs_ended or 0))


def test_one_number_is_a_run_of_its_own(server: FakeServer, sessions: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert replay(server, sessions, out, "--concurrency", "1") == 0
    assert read_run_record(out).lanes == 1
    assert "Throughput per GPU (tok/s)" in read_page(out / HTML_FILE)
    assert not list(out.glob("lanes-*"))
    settings = make_settings(out, workload=f"recording:{sessions}", concurrency=4)
    assert list_lanes(settings, [4]) == list_lanes(settings, ()) == [settings]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--concurrency", "0", "2"], "--concurrency 0: give at least 1"),
        (["--concurrency", "2", "4", "2"], "--concurrency 2 4 2: name each once"),
        (
            ["--concurrency", "2", "4", "--seeds", "1", "2"],
            "--concurrency 2 4: with --seeds give one number, or leave --seeds out",
        ),
    ],
)
def test_bad_numbers_are_refused_in_one_line(
    server: FakeServer, sessions: Path, capfd: pytest.CaptureFixture[str], options: list[str], text: str
) -> None:
    out = sessions.parent / "out"
    assert replay(server, sessions, out, *options) == 2
    assert capfd.readouterr().err == f"agentcache: {text}\n"
    assert not out.exists()


def test_a_number_that_was_run_already_is_kept(
    server: FakeServer, sessions: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    kept = out / "lanes-2" / RUN_FILE
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    assert replay(server, sessions, out, "--concurrency", "1", "2") == 2
    wanted = f"--out {kept.parent}: holds another run; give another folder, or --overwrite to replace it"
    assert capfd.readouterr().err == f"agentcache: {wanted}\n"
    assert kept.read_text() == "mine"
    assert list(out.iterdir()) == [kept.parent]
    assert replay(server, sessions, out, "--concurrency", "1", "2", "--overwrite") == 0
    assert read_run_record(kept.parent).lanes == 2


def test_a_run_in_out_itself_is_not_hidden_by_a_report(tmp_path: Path) -> None:
    (tmp_path / RUN_FILE).write_text("mine")
    settings = make_settings(tmp_path, model="tiny", policies=("lru",), overwrite=True)
    with pytest.raises(InputError, match=r"holds a run itself; give another folder for several numbers of lanes$"):
        list_lanes(settings, [2, 4])


def test_loops_of_one_recording_share_its_sessions(sessions: Path) -> None:
    settings = [JobSettings(workload=f"recording:{sessions}", concurrency=lanes) for lanes in (2, 3)]
    first, second = (loaded.loop for loaded in load_all(settings, CharacterTokenizer(), apart=False))
    assert first is not None
    assert second is not None
    assert (first.lanes, second.lanes) == (2, 3)
    assert first.sessions is second.sessions
    # Lane for lane the same sessions, so that the numbers compare.
    assert first.begin().start() == second.begin().start()[:2]


def test_an_interrupted_loop_says_what_it_served(server: FakeServer, sessions: Path, tmp_path: Path) -> None:
    out, asked = tmp_path / "out", 0

    def interrupt_late(_: Mapping[str, Any]) -> None:
        nonlocal asked
        asked += 1
        # Two lanes are warm after four.
        if asked == 10:
            os.kill(os.getpid(), signal.SIGINT)

    server.on_request = interrupt_late
    assert replay(server, sessions, out, "--concurrency", "2", "--duration=3600") == 130
    ended = next(event for event in read_events(out) if event.type == "policy")
    assert ended.broken_off
    assert ended.window_s is not None
    assert 0 < ended.window_s[1] - ended.window_s[0] < 60
    text = read_page(out / HTML_FILE)
    assert "server: interrupted: measured for" in text
    assert "Throughput per GPU (tok/s)" in text


@pytest.mark.parametrize("apart", [True, False])
def test_an_infinite_cache_outlives_a_run_where_the_server_does(sessions: Path, apart: bool) -> None:
    """What all sessions share is still there for the next number of lanes."""
    settings = [JobSettings(workload=f"recording:{sessions}", concurrency=lanes) for lanes in (2, 3)]
    runs = load_all(settings, CharacterTokenizer(), apart=apart)
    first, second = (loaded.loop.begin().infinite_cache for loaded in runs if loaded.loop is not None)
    context = Context((1, 2), 16, 40, 3)
    assert first.count_hits(context) == 0
    assert second.count_hits(context) == (32 if apart else 0)
