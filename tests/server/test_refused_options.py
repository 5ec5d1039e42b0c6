"""`agentcache serve` says in one line what cannot work, before anything is loaded."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from vllm.entrypoints.cli.serve import ServeSubcommand

from agentcache.cli import main
from agentcache.config_reader import read_config
from agentcache.server.arguments import build_arguments

TINY = ["serve", "tiny"]


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments with which vLLM's server would have been started."""
    args: list[Any] = []
    monkeypatch.setattr(ServeSubcommand, "cmd", args.append)
    monkeypatch.setenv("VLLM_PLUGINS", "agentcache")
    # vLLM's log keeps the stdout that it finds first, and a test's is closed when the next one writes to it.
    monkeypatch.setenv("VLLM_CONFIGURE_LOGGING", "0")
    monkeypatch.setattr(logging.getLogger("vllm"), "handlers", [logging.NullHandler()])
    return args


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--tool-call-parser", "hermez"], "--tool-call-parser hermez: unknown; choose from "),
        (["--agentcache", "runtime.tool_parser=hermez"], "runtime.tool_parser hermez: unknown; choose from "),
        (["--agentcache", "pins.budget=2"], "--agentcache pins.budget: Input should be less than or equal to 1"),
        (["--agentcache", "pins.bugdet=0.2"], "--agentcache pins.bugdet: no such knob; did you mean pins.budget?"),
        (
            ["--agentcache", "tuning.max_ttl_s=0"],
            "--agentcache tuning.max_ttl_s: Input should be greater than or equal to",
        ),
        (["--agentcache", f"tuning.max_jobs={2**63}"], "--agentcache tuning.max_jobs: Input should be less than or"),
        (
            ["--agentcache", "lifespan_s=1e999"],
            "--agentcache lifespan_s: Input should be less than or equal to 1000000000",
        ),
        (
            ["--agentcache", "order.patience_s=-1"],
            "--agentcache order.patience_s: Input should be greater than or equal",
        ),
        (["--agentcache", "tuning.max_jobs=many"], "--agentcache tuning.max_jobs: Input should be a valid integer"),
        (["--agentcache", "pins"], "--agentcache pins: give NAME=VALUE"),
        (["--policy", "continuum"], "--policy continuum: unknown; choose from vllm, "),
        (["--scheduler-cls", "other.Scheduler"], "--scheduler-cls other.Scheduler: agentcache brings its own"),
        (["--scheduler-cls", "builtins.print"], "--scheduler-cls builtins.print: agentcache brings its own"),
        (["--enable-auto-tool-choice", "--tool-call-parser", ""], "--tool-call-parser"),
        (["--reasoning-parser", "deep"], "--reasoning-parser deep: unknown; choose from "),
        (["--max-model-len", "9999999"], "vLLM refuses the options: User-specified max_model_len (9999999)"),
        (["--compilation-config.mode"], "vLLM refuses the options: the last one lacks its value"),
        (["--config", "/proc/none.yaml"], "--config /proc/none.yaml: [Errno 2] No such file or directory"),
        (["--config"], "vLLM refuses the options: No config file specified!"),
        (["--config", "a.yaml", "--config", "b.yaml"], "--config: given twice; give one file"),
        (["--config=a.yaml"], "--config=a.yaml: vLLM would not read it; give --config a.yaml"),
        (
            ["--job-log", "/none/jobs"],
            "--job-log /none/jobs: No such file or directory; name a file that can be written",
        ),
        (["--record", "/dev/null"], "/dev/null: is not a regular file; name a file in a folder that exists"),
        (["--record", "/none/traffic.jsonl"], "/none/traffic.jsonl: its folder does not exist; name a file"),
        (["--job-log", "jobs", "--policy", "lru"], "--job-log jobs: policy lru follows no jobs; leave it out, or"),
        (["--port", "70000"], "--port 70000: the server cannot listen there"),
        (["--uds", "/proc/none/socket"], "--uds /proc/none/socket: the server cannot listen there"),
    ],
)
def test_what_cannot_work_is_one_line(
    options: list[str], complaint: str, started: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("agentcache: ")
    assert complaint in line
    assert not started


@pytest.mark.parametrize("options", [[], ["--host", "127.0.0.1"]])
def test_a_port_in_use_is_refused(options: list[str], started: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        flags = [*options, "--port", str(listener.getsockname()[1])]
        assert main([*TINY, *flags]) == 2
    text = f"agentcache: {' '.join(flags)}: the server cannot listen there (Address already in use); "
    assert capsys.readouterr().err == f"{text}give an address that is free\n"
    assert not started
    assert main([*TINY, *flags]) == 0


@pytest.mark.parametrize("count", ["1", "2"])
def test_only_several_servers_share_a_port(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as listener:
        flags = ["--host", "127.0.0.1", "--port", str(listener.getsockname()[1]), "--api-server-count", count]
        assert main([*TINY, *flags]) == (2 if count == "1" else 0)
    assert ("cannot listen" in capsys.readouterr().err) == (count == "1")


def test_a_socket_that_is_there_is_refused(started: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "socket"
    assert main([*TINY, "--uds", str(path)]) == 0
    assert not path.exists()
    path.touch()
    assert main([*TINY, "--uds", str(path)]) == 2
    assert path.exists()
    assert len(started) == 1


def test_a_file_of_something_else_is_not_taken_for_durations(
    started: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert main([*TINY, "--agentcache", f"runtime.durations_file={path}"]) == 2
    text = f"agentcache: --agentcache runtime.durations_file: {path} is not a regular file; name one"
    assert capsys.readouterr().err == f"{text} that agentcache may replace\n"
    assert not started


def test_a_folder_without_a_profile_is_named_as_it_was_given(
    started: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = f"{tmp_path}: has no profile of "
    assert main([*TINY, "--profile", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"agentcache: --profile {begin}")
    assert main([*TINY, "--agentcache", f"cost_profile={tmp_path}"]) == 2
    assert capsys.readouterr().err.startswith(f"agentcache: --agentcache cost_profile: {begin}")
    config = f'{{"agentcache": {{"cost_profile": "{tmp_path}"}}}}'
    assert main([*TINY, "--additional-config", config]) == 2
    assert capsys.readouterr().err.startswith(f"agentcache: additional_config: agentcache.cost_profile: {begin}")
    assert not started


@pytest.mark.parametrize(
    "options",
    [
        ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"],
        ["--tool_call_parser=llama3_json", "--served-model-name", "mine", "other", "--dtype", "bfloat16"],
    ],
)
def test_options_of_the_model_may_be_given_as_well(
    options: list[str], started: list[Any], vllm_log: pytest.LogCaptureFixture
) -> None:
    assert main([*TINY, *options]) == 0
    assert "duplicate" not in vllm_log.text
    (args,) = started
    assert args.enable_auto_tool_choice
    assert args.tool_call_parser == ("hermes" if "hermes" in options else "llama3_json")
    assert args.served_model_name == (["tiny"] if "hermes" in options else ["mine", "other"])


@pytest.mark.parametrize(("options", "timeout_s"), [([], 10), (["--shutdown-timeout", "0"], 0)])
def test_the_engine_has_time_to_save_unless_the_user_says_so(
    options: list[str], timeout_s: int, started: list[Any]
) -> None:
    assert main([*TINY, *options]) == 0
    assert started[0].shutdown_timeout == timeout_s


@pytest.mark.parametrize(("options", "tells"), [([], True), (["--no-enable-prompt-tokens-details"], False)])
def test_replies_tell_cached_tokens_unless_the_user_says_so(
    options: list[str], tells: bool, started: list[Any]
) -> None:
    assert main([*TINY, *options]) == 0
    assert started[0].enable_prompt_tokens_details is tells


def test_a_configuration_file_goes_before_our_defaults(started: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("shutdown-timeout: 3\n")
    assert main([*TINY, "--config", str(path)]) == 0
    assert started[0].shutdown_timeout == 3


def test_knobs_of_a_configuration_file_take_effect(started: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("additional-config:\n  agentcache:\n    tuning: {row_s: 0.5, slope_ratio: 9}\n")
    assert main([*TINY, "--config", str(path), "--agentcache", "tuning.slope_ratio=7"]) == 0
    tuning = read_config(started[0].additional_config).tuning
    assert (tuning.row_s, tuning.slope_ratio) == (0.5, 7.0)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("port: 80\nblock-size: [1, 2\n", "line 3, column 1; write an option of vLLM's and its value a line"),
        ("port: 80\ndtype: a: b\n", "mapping values are not allowed here in "),
        ("port: 80\n\ndtype: \x01\n", "special characters are not allowed in "),
        ("dtype: \udcff\n", "'utf-8' codec can't decode byte 0xff in position 7: invalid start byte; write"),
        ("# port: 80\n", "object has no attribute 'items'; write an option"),
        ("80: port\n", "; write an option"),
        ("additional-config:\n  a: !!binary aGk=\n", "Object of type bytes is not JSON serializable; write"),
        ("additional-config: &a\n  text: *a\n", "Circular reference detected; write"),
        ("policy: lru\n", "the file is for vLLM's options; give --policy on the command line"),
    ],
)
def test_a_broken_configuration_file_is_one_line(
    content: str, complaint: str, started: list[Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(content, errors="surrogateescape")
    assert main([*TINY, "--config", str(path)]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"agentcache: --config {path}: ")
    assert complaint in line
    assert not started


def test_a_model_that_nobody_has_is_refused(
    started: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert main(["serve", "no-such-owner/model"]) == 2
    assert capsys.readouterr().err.startswith("agentcache: model no-such-owner/model: there is no such folder, and")
    assert not started


def test_what_vllm_says_of_its_options_is_kept(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agentcache.server.command.make_engine_config", lambda _: os.write(2, b"a warning\n"))
    assert main(TINY) == 0
    assert capfd.readouterr().out == "a warning\n"


@pytest.mark.parametrize(
    ("options", "policy"), [([], "agentcache"), (["--policy", "continuum-paper"], "continuum-paper")]
)
def test_the_policy_is_ours_unless_another_is_named(options: list[str], policy: str, started: list[Any]) -> None:
    assert main([*TINY, *options]) == 0
    (args,) = started
    config = read_config(args.additional_config)
    assert (config.policy, config.runtime.tool_parser) == (policy, "hermes")


def test_a_parser_that_a_plugin_brings_is_the_servers_matter(started: list[Any]) -> None:
    assert main([*TINY, "--tool-call-parser", "mine", "--tool-parser-plugin", "mine.py"]) == 0
    assert read_config(started[0].additional_config).runtime.tool_parser is None


@pytest.mark.parametrize(
    ("options", "knobs", "parser"),
    [
        ([], {}, "hermes"),
        (["--tool-call-parser", "llama3_json"], {}, "llama3_json"),
        (["--tool-call-parser", "llama3_json"], {"runtime": {"tool_parser": "pythonic"}}, "pythonic"),
        (["--tool-call-parser", "mine", "--tool-parser-plugin", "mine.py"], {}, None),
        (["--tool-call-parser", "hermes", "--tool-parser-plugin", "mine.py"], {}, "hermes"),
    ],
)
def test_the_engine_reads_with_the_servers_parser(
    options: list[str], knobs: dict[str, Any], parser: str | None
) -> None:
    args = build_arguments("tiny", options, knobs=knobs)
    assert read_config(args.additional_config).runtime.tool_parser == parser


def test_a_server_without_a_parser_gives_the_engine_none(tiny_model_path: str) -> None:
    assert read_config(build_arguments(tiny_model_path, []).additional_config).runtime.tool_parser is None


def test_a_scheduler_derived_from_ours_may_take_its_place(tiny_model_path: str) -> None:
    derived = "forgetful_scheduler.ForgetfulScheduler"
    assert build_arguments(tiny_model_path, ["--scheduler-cls", derived]).scheduler_cls == derived
