"""The front end passes the tool-call parser and the report's address to the engine."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

import pytest
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.vllm.compat import find_moved
from agentcache.errors import InputError
from agentcache.front_end.plugin import register
from agentcache.front_end.server_options import find_report_url, tell_parser

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


SERVER = {
    "headless": False,
    "api_server_count": 1,
    "uds": None,
    "host": None,
    "port": 8000,
    "ssl_certfile": None,
    "root_path": "/here",
    "api_key": None,
}


@pytest.mark.parametrize(
    ("changes", "key", "url"),
    [
        ({}, None, "http://127.0.0.1:8000/here/agentcache/report"),
        ({"api_key": ["k"]}, None, "http://127.0.0.1:8000/here/agentcache-live"),
        ({}, "k", "http://127.0.0.1:8000/here/agentcache-live"),
        ({"host": "::1", "ssl_certfile": "x"}, None, "https://[::1]:8000/here/agentcache/report"),
        ({"uds": "socket"}, "k", None),
        # Known when the server has one.
        ({"port": 0}, None, None),
        ({"headless": True}, None, None),
        ({"api_server_count": None}, None, "http://127.0.0.1:8000/here/agentcache/report"),
        ({"api_server_count": 0}, None, None),
    ],
)
def test_a_browser_is_sent_where_it_can_give_the_key(
    changes: dict[str, Any], key: str | None, url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "theirs,agentcache")
    monkeypatch.setenv("VLLM_API_KEY", key or "")
    assert find_report_url(Namespace(**SERVER | changes)) == url


def test_only_a_server_with_our_routes_has_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "agentcache")
    # Another command's, as of vLLM's run-batch.
    assert find_report_url(Namespace(host=None, port=8000)) is None
    assert find_report_url(Namespace(**SERVER)) is not None
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    assert find_report_url(Namespace(**SERVER)) is None
    monkeypatch.delenv("VLLM_USE_RUST_FRONTEND")
    monkeypatch.delenv("VLLM_PLUGINS")
    assert find_report_url(Namespace(**SERVER)) is None
