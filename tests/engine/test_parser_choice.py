from __future__ import annotations

import json
import logging
from argparse import Namespace
from typing import Any

import pytest
from lone_scheduler import make_config
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

from agentcache.config import RuntimeConfig
from agentcache.config_reader import read_config
from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.plugin import register
from agentcache.engine.replies.parser_choice import make_reader, tell_parser
from agentcache.engine.vllm.compat import find_moved
from agentcache.errors import InputError

HERMES = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")


def read_options(model: str, *options: str) -> EngineArgs:
    """What `vllm serve MODEL OPTIONS` makes its engine of."""
    register()
    parser = find_moved("make_arg_parser")(FlexibleArgumentParser())
    return AsyncEngineArgs.from_cli_args(parser.parse_args(["--model", model, *options]))


def tell(given: dict[str, Any], **options: object) -> dict[str, Any]:
    return tell_parser(given, Namespace(**options))


def test_vllm_serve_tells_our_engine_its_parser(tiny_model_path: str) -> None:
    args = read_options(tiny_model_path, "--scheduler-cls", SCHEDULER_CLASS, *HERMES)
    assert args.additional_config == {"agentcache": {"runtime": {"tool_parser": "hermes"}}}


def test_vllm_serve_with_another_scheduler_is_as_without_us(tiny_model_path: str) -> None:
    other = json.dumps({"other": 7})
    args = read_options(tiny_model_path, *HERMES, "--additional-config", other)
    assert args.additional_config == {"other": 7}
    assert args.create_engine_config().additional_config == {"other": 7}


def test_the_rest_of_the_configuration_stays_as_it_is() -> None:
    given = {"agentcache": {"policy": "asymcache", "runtime": {"max_idle_s": 3}}, "other": 7}
    told = {"policy": "asymcache", "runtime": {"max_idle_s": 3, "tool_parser": "hermes"}}
    assert tell(given, tool_call_parser="hermes") == {"agentcache": told, "other": 7}
    assert given == {"agentcache": {"policy": "asymcache", "runtime": {"max_idle_s": 3}}, "other": 7}


@pytest.mark.parametrize("parser", ["pythonic", None])
def test_what_the_user_says_goes_before(parser: str | None) -> None:
    given = {"agentcache": {"runtime": {"tool_parser": parser}}}
    assert tell(given, tool_call_parser="hermes") == given


@pytest.mark.parametrize("options", [{}, {"tool_call_parser": None}])
def test_a_server_without_a_parser_says_so(options: dict[str, None], vllm_log: pytest.LogCaptureFixture) -> None:
    assert tell({}, **options) == {"agentcache": {"runtime": {"tool_parser": None}}}
    assert vllm_log.text == ""


def test_a_parser_that_a_plugin_brings_is_not_the_engine_s(vllm_log: pytest.LogCaptureFixture) -> None:
    assert tell({}, tool_call_parser="mine") == {"agentcache": {"runtime": {"tool_parser": None}}}
    assert "cannot read tool calls with mine, which is none of vLLM's own parsers" in vllm_log.text


def test_a_misspelt_knob_is_named_before_anything_is_loaded() -> None:
    with pytest.raises(InputError, match=r"^additional_config: agentcache\.polcy: no such knob"):
        tell({"agentcache": {"polcy": "lru"}}, tool_call_parser="hermes")


def read_runtime(**knobs: object) -> RuntimeConfig:
    return read_config({"agentcache": {"runtime": knobs}}).runtime


UNREAD = "Tool calls are not read, so nothing is kept while tools run: "
UNNAMED = f"{UNREAD}VLLM_PLUGINS is set and does not name agentcache; add it."


@pytest.fixture
def small_config(tiny_model_path: str) -> VllmConfig:
    return make_config(tiny_model_path, None)


@pytest.mark.parametrize(
    ("plugins", "knobs", "warning"),
    [
        (None, {"tool_parser": "hermes"}, ""),
        ("other,agentcache", {"tool_parser": "hermes"}, ""),
        ("other", {"tool_parser": "hermes"}, UNNAMED),
        ("", {}, UNNAMED),
        # Nothing is to be read.
        (None, {"tool_parser": None}, ""),
        ("other", {"tool_parser": None}, ""),
        (None, {}, 'as in additional_config={"agentcache": {"runtime": {"tool_parser": "hermes"}}}, or null.'),
    ],
)
def test_who_cannot_know_the_calls_is_told_what_to_set(
    small_config: VllmConfig,
    vllm_log: pytest.LogCaptureFixture,
    plugins: str | None,
    knobs: dict[str, Any],
    warning: str,
) -> None:
    vllm_log.clear()
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("VLLM_PLUGINS", raising=False)
        if plugins is not None:
            environment.setenv("VLLM_PLUGINS", plugins)
        reader = make_reader(small_config, read_runtime(**knobs))
    assert (reader is not None) == (knobs.get("tool_parser") is not None)
    told = [record.getMessage() for record in vllm_log.records if record.levelno == logging.WARNING]
    assert len(told) == bool(warning)
    assert all(line.startswith(UNREAD) and line.endswith(warning) for line in told)


def test_a_front_end_in_rust_tells_of_no_tools(
    small_config: VllmConfig, monkeypatch: pytest.MonkeyPatch, vllm_log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    make_reader(small_config, read_runtime(tool_parser="hermes"))
    assert f"{UNREAD}vLLM's Rust front end does not tell which tools a request declares" in vllm_log.text
