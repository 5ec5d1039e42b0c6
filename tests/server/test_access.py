"""Our routes ask for the API key; a server warns where anybody can read text of its prompts."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from made_engine import FakeCore, make_engine
from vllm.engine.async_llm_engine import AsyncLLMEngine

from agentcache.config import AgentCacheConfig
from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.server.access import describe_open_text
from agentcache.server.endpoint_plugin import AgentCacheEndpoints

SHOWING = {"policy": "agentcache", "runtime": {"show_text": True}}


def describe(config: dict[str, Any] | None = None, **given: Any) -> str | None:
    args = Namespace(**{"host": None, "api_key": None, "uds": None, **given})
    return describe_open_text(AgentCacheConfig.model_validate(SHOWING if config is None else config), args)


@pytest.fixture(autouse=True)
def _without_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)


@pytest.mark.parametrize("host", [None, "", "0.0.0.0", "::", "10.0.0.7", "gpu7"])
def test_text_without_a_key_is_open_to_the_network(host: str | None) -> None:
    said = describe(host=host)
    assert said is not None
    assert said.startswith("agentcache: runtime.show_text is on and there is no API key: ")


@pytest.mark.parametrize(
    "given",
    [{"host": "127.0.0.1"}, {"host": "127.8.0.1"}, {"host": "::1"}, {"host": "localhost"}, {"uds": "/tmp/s"}],
)
def test_text_for_this_machine_alone_is_not_open(given: dict[str, str]) -> None:
    assert describe(**given) is None


def test_a_key_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe(api_key=["secret"]) is None
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    assert describe() is None


@pytest.mark.parametrize("key", [None, ""])
def test_an_empty_key_closes_nothing(monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    """vLLM then has none, and looks for no other."""
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    assert describe(api_key=[key]) is not None


@pytest.mark.parametrize("config", [{}, {"policy": "lru", "runtime": {"show_text": True}}])
def test_where_no_text_is_shown_nothing_is_said(config: dict[str, Any]) -> None:
    assert describe(config) is None


class FrontEnd(AsyncLLMEngine):
    """As much of it as our plug-in looks at; `index` is which of several API servers it is of."""

    def __init__(self, index: int) -> None:
        found: Any = self
        core = FakeCore((make_engine(), []))
        found.engine_core = SimpleNamespace(call_utility_all_async=core.call, client_index=index)
        found.renderer = SimpleNamespace(tokenizer=None)
        found.vllm_config = SimpleNamespace(
            scheduler_config=SimpleNamespace(scheduler_cls=SCHEDULER_CLASS), additional_config={"agentcache": SHOWING}
        )

    def __del__(self) -> None:
        pass


def test_the_first_api_server_warns_once(vllm_log: pytest.LogCaptureFixture) -> None:
    args = Namespace(host=None, api_key=None, uds=None)
    for index in (0, 1):
        asyncio.run(AgentCacheEndpoints().init_state(FrontEnd(index), FastAPI().state, args))
    assert [record.getMessage() for record in vllm_log.records if "show_text" in record.getMessage()] == [describe()]
