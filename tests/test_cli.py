from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from shown_page import read_page

from agentcache.cli import main
from agentcache.jobs.settings import JobSettings
from agentcache.replay.settings import ReplaySettings
from agentcache.report.events import EVENTS_FILE, RUN_FILE, EventWriter, JobEvent, RunRecord, write_run_record
from agentcache.report.summary import Summary

RECORD = RunRecord(
    command="agentcache replay bfcl --model tiny --policy lru --out runs/one",
    started_at="2026-11-21T10:30:00+00:00",
    workload="bfcl",
    model="tiny",
    device="CPU backend",
    seed=0,
    jobs=1,
    cache_tokens=None,
    settings={},
    versions={},
)

# Status 2, one line on stderr, nothing on stdout: gives the line.
Refuse = Callable[..., str]


@pytest.fixture
def _quiet_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's log keeps the stdout that it finds first, and a test's is closed when the next one writes to it."""
    monkeypatch.setenv("VLLM_CONFIGURE_LOGGING", "0")
    monkeypatch.setattr(logging.getLogger("vllm"), "handlers", [logging.NullHandler()])


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here may come as far as an engine."""
    module = ModuleType("agentcache.server.embedded")

    def run_embedded_server(_args: object) -> None:
        pytest.fail("an engine was started")

    module.run_embedded_server = run_embedded_server  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def refuse(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Refuse:
    def run(*arguments: str | Path) -> str:
        before = read_all(tmp_path)
        try:
            status: object = main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            status = exit_.code
        out, err = capfd.readouterr()
        assert (status, out) == (2, "")
        assert err.startswith("agentcache: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        assert read_all(tmp_path) == before
        return err.removeprefix("agentcache: ").removesuffix("\n")

    return run


def read_all(folder: Path) -> dict[Path, str | None]:
    """Everything in a folder; None is a folder."""
    return {path: path.read_text() if path.is_file() else None for path in folder.rglob("*")}


def replay_of(out: Path, *options: str | Path) -> list[str | Path]:
    """A replay on the tiny model whose jobs are soon made."""
    return ["replay", "bfcl", "--model", "tiny", "--policy", "lru", "--jobs=1", "--scale=0.1", "--out", out, *options]


def make_run(folder: Path) -> Path:
    folder.mkdir()
    write_run_record(folder, RECORD)
    with EventWriter(folder) as writer:
        writer.write(JobEvent(policy="lru", job="a", started_s=0.0, finished_s=2.0, turns=1, status="finished"))
    return folder


@pytest.mark.parametrize(
    ("typed", "value"), [(["--port", "8000"], "8000"), (["--host", "0.0.0.0", "--uds"], "0.0.0.0")]
)
def test_serve_without_a_model_is_told_before_vllm_loads(
    typed: list[str], value: str, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentcache.cli.command._check_vllm", lambda: pytest.fail("vLLM was loaded"))
    assert "serve: the following arguments are required: MODEL" in refuse("serve")
    assert f"serve: MODEL is missing, and {value} is no model: give it first" in refuse("serve", *typed)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--policy", "fifo"], "--policy fifo: unknown; choose from vllm, lru"),
        (["--policy", "lru"], "--policy: the same policy is given twice; give each once"),
        (["--max-gap", "3"], "--max-gap: only for recording"),
        (["--base-url", "http://127.0.0.1:1/v1"], "--base-url: the server has its own policy, cache and options"),
        (["--seed", "-1"], "--seed -1: give 0 or more"),
        (["--kv-tokens", "0"], "--kv-tokens 0: give the number of tokens"),
        (["--request-timeout", "-5"], "--request-timeout -5: give a number of seconds above 0"),
    ],
)
def test_bad_options_are_refused(refuse: Refuse, tmp_path: Path, options: list[str], text: str) -> None:
    assert refuse(*replay_of(tmp_path / "out", *options)).startswith(text)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["chat", "--model", "tiny", "--policy", "lru"], "workload chat: unknown; choose from bfcl"),
        (
            ["recording:no-such-file", "--model", "tiny", "--policy", "lru"],
            "workload recording: there is no no-such-file",
        ),
        (["bfcl", "--policy", "lru"], "replay: give --model and --policy, or --base-url"),
        (["bfcl", "--model", "tiny"], "replay: give --model and --policy, or --base-url"),
        (["bfcl", "--base-url", "http://host:80"], "--base-url http://host:80: must end in /v1"),
    ],
)
def test_bad_targets_are_refused(refuse: Refuse, tmp_path: Path, options: list[str], text: str) -> None:
    assert refuse("replay", *options, "--out", tmp_path / "out").startswith(text)


def test_a_server_that_nobody_runs_is_refused(refuse: Refuse, tmp_path: Path, port: int) -> None:
    url = f"http://127.0.0.1:{port}/v1"
    text = refuse("replay", "bfcl", "--base-url", url, "--out", tmp_path / "out")
    assert text.startswith(f"--base-url {url}: no OpenAI server answers there")


def test_a_folder_that_cannot_be_made_is_refused(refuse: Refuse, tmp_path: Path) -> None:
    assert refuse(*replay_of(Path("/proc/out"))).startswith("--out /proc/out: cannot be written (")
    long = tmp_path / ("x" * 300)
    assert refuse(*replay_of(long)) == f"--out {long}: cannot be written (File name too long); give another folder"


def test_the_folder_of_another_run_is_refused(refuse: Refuse, tmp_path: Path) -> None:
    out = make_run(tmp_path / "out")
    assert refuse(*replay_of(out)).startswith(f"--out {out}: holds another run")
    assert {path.name for path in out.iterdir()} == {RUN_FILE, EVENTS_FILE}


def test_a_file_as_the_folder_is_refused(refuse: Refuse, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    assert refuse(*replay_of(file)) == f"--out {file}: {file} is a file; give a folder"
    assert refuse(*replay_of(file / "below")).startswith(f"--out {file / 'below'}: ")


@pytest.mark.usefixtures("_quiet_vllm")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--model", "shape:gpt-9"], "model shape:gpt-9: unknown shape; choose from shape:llama-3.1-8b"),
        (["--kv-tokens", "1000"], "--kv-tokens: job web_search_"),
        (["--scale", "1", "--seed", "7"], "--scale: job web_search_"),
        (["--scale", "5"], "--scale 5: give a number above 0 and up to 4"),
        (["--scale", "nan"], "--scale nan: give a number above 0"),
        (["--rate", "0"], "--rate 0: give a number above 0"),
        (["--rate", "nan"], "--rate nan: give a number above 0"),
        (["--jobs", "0"], "--jobs 0: give at least 1"),
        (["--tool-latency", "soon"], "--tool-latency soon: 'soon' is not a number"),
        (["--tool-latency", "lognormal:1"], "--tool-latency lognormal:1: not a known form"),
        (["--", "--no-such-option", "3"], "unrecognized arguments: --no-such-option"),
        (["--", "--dtype", "quadruple"], "argument --dtype: invalid choice"),
        (["--", "--scheduler-cls", "my.Scheduler"], "--scheduler-cls my.Scheduler: agentcache brings its own"),
        (["--", "--max-model-len", "10000000"], "vLLM refuses the options: "),
    ],
)
def test_what_the_engine_cannot_run_is_refused_before_it_starts(
    refuse: Refuse, tmp_path: Path, options: list[str], text: str
) -> None:
    assert text in refuse(*replay_of(tmp_path / "out", *options))


@pytest.mark.usefixtures("_quiet_vllm")
def test_a_folder_without_a_model_is_refused(refuse: Refuse, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    text = refuse(*replay_of(tmp_path / "out", "--model", folder))
    assert text == f"model {folder}: the folder has no config.json; give the folder that holds the model's files"
    (folder / "config.json").write_text("{}")
    assert refuse(*replay_of(tmp_path / "out", "--model", folder)).startswith(f"model {folder}: no tokenizer")


@pytest.mark.usefixtures("_quiet_vllm")
@pytest.mark.parametrize("command", [["replay", "bfcl", "--policy=lru", "--model"], ["profile"]])
def test_a_model_that_nobody_has_is_refused(
    refuse: Refuse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    text = refuse(*command, "no-such-owner/model", "--out", tmp_path / "out")
    assert text.startswith("model no-such-owner/model: there is no such folder, and the hub's cache does not have it")


SEVEN_JOBS = JobSettings(
    workload="bfcl",
    seed=9,
    jobs=7,
    rate=2.0,
    arrival="even",
    scale=0.5,
    tool_latency="1",
)


def test_options_reach_the_replay_and_its_status_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    taken: list[ReplaySettings] = []

    def replay_all(runs: list[ReplaySettings]) -> tuple[int, list[Summary]]:
        taken.extend(runs)
        return 130, [Summary(policies={}, run=RECORD)]

    monkeypatch.setattr("agentcache.replay.command.replay_all", replay_all)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    typed = ["replay", "bfcl", "--model=tiny", "--policy=vllm", "--policy=lru", "--kv-tokens=4096", "--jobs=7"]
    typed += ["--rate=2", "--arrival=even", "--scale=0.5", "--tool-latency=1", "--seed=9"]
    typed += ["--request-timeout=5", f"--out={tmp_path}", "--overwrite", "--", "--dtype", "half"]
    assert main(typed) == 130
    assert taken == [
        ReplaySettings(
            command=f"agentcache {' '.join(typed)}",
            jobs=SEVEN_JOBS,
            out=tmp_path,
            overwrite=True,
            policies=("vllm", "lru"),
            model="tiny",
            base_url=None,
            api_key="secret",
            engine_options=("--dtype", "half"),
            kv_tokens=4096,
            request_timeout_s=5.0,
        )
    ]
    assert f"report: {tmp_path}/report.html" in capfd.readouterr().out


def test_serve_passes_what_it_does_not_know_to_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[object] = []
    module = ModuleType("agentcache.server.command")
    module.serve = lambda *given, **options: taken.append((*given, options))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert (
        main(["serve", "tiny", "--port", "8001", "--policy", "vllm", "--forced-replies", "--", "--dtype", "half"]) == 0
    )
    assert main(["serve", "tiny", "--pol", "x", "--agentcache", "segments.enabled=false"]) == 0
    assert taken == [
        ("tiny", ["--port", "8001", "--dtype", "half"], "vllm", {"forced_replies": True, "knobs": {}}),
        ("tiny", ["--pol", "x"], None, {"forced_replies": False, "knobs": {"segments": {"enabled": False}}}),
    ]


def test_ctrl_c_is_one_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Commands that then have something to show end in their own way; reading and loading take seconds before."""
    monkeypatch.setattr("agentcache.cli.command._check_vllm", lambda: signal.raise_signal(signal.SIGINT))
    assert main(["serve", "tiny"]) == 130
    assert capfd.readouterr() == ("", "agentcache: interrupted\n")


def test_a_report_is_made_again_and_runs_are_compared(
    refuse: Refuse, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one, two = make_run(tmp_path / "one"), make_run(tmp_path / "two")
    assert main(["report", str(one)]) == 0
    assert f"report: {one}/report.html" in capfd.readouterr().out
    assert {"summary.json", "report.html"} <= {path.name for path in one.iterdir()}
    assert main(["report", str(one), str(two), "--out", str(tmp_path / "both")]) == 0
    capfd.readouterr()
    assert refuse("report", one, two, "--out", tmp_path / "both").endswith(
        "holds another report; give another folder, or --overwrite to replace it"
    )
    assert main(["report", str(one), str(two), "--out", str(tmp_path / "both"), "--overwrite"]) == 0
    assert main(["report", str(one), "--out", str(one)]) == 0
    assert set(json.loads((tmp_path / "both" / "summary.json").read_text())["policies"]) == {"one: lru", "two: lru"}


def test_runs_of_other_jobs_have_no_headline(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one, two = make_run(tmp_path / "one"), make_run(tmp_path / "two")
    out = str(tmp_path / "both")
    assert main(["report", str(one), str(two), "--out", out]) == 0
    shown = capfd.readouterr().out
    assert "Too few jobs: 1 under one: lru and two: lru" in shown
    assert "The runs differ" not in shown
    write_run_record(two, RECORD.model_copy(update={"workload": "recording", "seed": 1}))
    assert main(["report", str(one), str(two), "--out", out, "--overwrite"]) == 0
    shown = capfd.readouterr().out
    assert "Too few jobs" not in shown + read_page(tmp_path / "both" / "report.html")
    assert "The runs differ in workload: bfcl, recording.\nThe runs differ in seed: 0, 1.\n" in shown


def test_bad_folders_of_a_report_are_refused(refuse: Refuse, tmp_path: Path) -> None:
    one, two = make_run(tmp_path / "one"), make_run(tmp_path / "two")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    assert refuse("report", tmp_path / "empty").startswith(f"{tmp_path / 'empty'} holds no run: run.json is missing")
    assert refuse("report", tmp_path / "none").startswith(f"{tmp_path / 'none'} holds no run")
    assert refuse("report", one, two) == "report: give --out, the folder for the comparison of several runs"
    assert refuse("report", one, one, "--out", tmp_path / "both").startswith("the same run is given twice")
    file = tmp_path / "file"
    assert refuse("report", one, "--out", file) == f"--out {file}: {file} is a file; give a folder"
    assert refuse("report", one, "--out", "/proc/out").startswith("--out /proc/out: cannot be written (")
    (full := tmp_path / "full").mkdir()
    (full / "summary.json").symlink_to("/dev/full")
    assert refuse("report", one, "--out", full, "--overwrite") == (
        "--out: No space left on device; free some space, or give another folder"
    )


def test_a_report_tells_on_stderr_what_is_missing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    with (run / EVENTS_FILE).open("a") as file:
        file.write('{"type": "policy", "pol')
    assert main(["report", str(run)]) == 0
    out, err = capfd.readouterr()
    assert err == "agentcache: run: events.jsonl: the last line is cut off, and what it recorded is left out.\n"
    assert f"report: {run}/report.html" in out


def test_simulate_and_report_take_no_options_behind_dashes(refuse: Refuse, tmp_path: Path) -> None:
    text = refuse("report", tmp_path, "--", "--dtype", "half")
    assert text == "report: only serve, replay and profile pass options behind -- on to vLLM"


def test_a_simulation_is_run_and_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    jobs = ["--jobs", "2", "--scale", "0.05", "--arrival", "at-once", "--seed", "3"]
    engine = ["--model", "tiny", "--gpu", "cpu", "--kv-tokens", "8000", "--policy", "lru", "--policy", "asymcache"]
    out = tmp_path / "out"
    assert main(["simulate", "bfcl", *engine, *jobs, "--out", str(out)]) == 0
    assert "Prefill, modelled" in capfd.readouterr().out
    assert "simulated CPU (analytic cost model)" in read_page(out / "report.html")
