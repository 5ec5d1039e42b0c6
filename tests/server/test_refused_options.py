"""`agentcache serve` says in one line what cannot work, before anything is loaded."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.entrypoints.cli.serve import ServeSubcommand

from agentcache.cli import main
from agentcache.config import read_config

TINY = ["serve", "tiny"]


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments with which vLLM's server would have been started."""
    args: list[Any] = []
    monkeypatch.setattr(ServeSubcommand, "cmd", args.append)
    monkeypatch.setenv("VLLM_PLUGINS", "agentcache")
    return args


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--tool-call-parser", "hermez"], "--tool-call-parser hermez: unknown; choose from "),
        (["--agentcache", "runtime.tool_parser=hermez"], "runtime.tool_parser hermez: unknown; choose from "),
        (["--agentcache", "pins.budget=2"], "agentcache.pins.budget: Input should be less than or equal to 1"),
        (["--agentcache", "pins.bugdet=0.2"], "agentcache.pins.bugdet: Extra inputs are not permitted"),
        (["--agentcache", "pins.max_ttl_s=0"], "agentcache.pins.max_ttl_s: Input should be greater than 0"),
        (["--agentcache", "order.patience_s=-1"], "agentcache.order.patience_s: Input should be greater than or equal"),
        (["--agentcache", "runtime.max_jobs=many"], "agentcache.runtime.max_jobs: Input should be a valid integer"),
        (["--agentcache", "pins"], "--agentcache pins: give NAME=VALUE"),
        (["--policy", "continuum"], "--policy continuum: unknown; choose from vllm, "),
        (["--scheduler-cls", "other.Scheduler"], "--scheduler-cls: agentcache brings its own scheduler"),
        (["--enable-auto-tool-choice", "--tool-call-parser", ""], "--tool-call-parser"),
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
