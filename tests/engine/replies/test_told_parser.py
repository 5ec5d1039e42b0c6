"""What an engine that cannot know the calls of its replies says at its start."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from lone_scheduler import make_config
from vllm.config import VllmConfig

from agentcache.config import RuntimeConfig
from agentcache.config_reader import read_config
from agentcache.engine.replies.ended_reply import make_reader


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
