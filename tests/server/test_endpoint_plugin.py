"""The routes on an app without an engine: what they answer when there is nothing to tell."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from vllm.entrypoints.serve.middleware import authenticate
from vllm.plugins.endpoint_plugins.interface import EndpointPlugin

from agentcache.engine.compat import check_server
from agentcache.errors import CompatibilityError
from agentcache.server.endpoint_plugin import AgentCacheEndpoints
from agentcache.server.routes import router
from agentcache.server.snapshot_reader import SnapshotReader


@pytest.fixture(autouse=True)
def _as_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(authenticate, "GUARDED_PREFIX", authenticate.GUARDED_PREFIX)
    check_server.cache_clear()
    yield
    check_server.cache_clear()


def make_client(answers: list[Any] | Exception) -> TestClient:
    async def ask() -> list[Any]:
        if isinstance(answers, Exception):
            raise answers
        return answers

    app = FastAPI()
    app.include_router(router)
    app.state.agentcache_snapshots = SnapshotReader(ask)
    return TestClient(app)


def test_it_is_what_vllm_asks_for() -> None:
    assert isinstance(AgentCacheEndpoints(), EndpointPlugin)


def test_state_of_a_stock_engine_is_not_found() -> None:
    answer = make_client([None]).get("/agentcache/state")
    assert (answer.status_code, answer.json()["detail"]) == (404, "The engine runs without agentcache's scheduler.")


def test_state_before_the_first_answer_is_unavailable() -> None:
    assert make_client(Exception("Server shutting down")).get("/agentcache/state").status_code == 503


def test_an_app_without_metrics_is_refused() -> None:
    with pytest.raises(CompatibilityError, match="no route /metrics"):
        AgentCacheEndpoints().attach_router(FastAPI())


@pytest.mark.parametrize("guarded", [("/other",), None])
def test_a_server_that_guards_its_paths_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch, guarded: Any) -> None:
    monkeypatch.setattr(authenticate, "GUARDED_PREFIX", guarded)
    with pytest.raises(CompatibilityError, match="which paths need the API key"):
        AgentCacheEndpoints().attach_router(FastAPI())


def test_no_server_comes_up_without_the_engine_to_ask() -> None:
    with pytest.raises(CompatibilityError, match="VLLM_PLUGINS"):
        asyncio.run(AgentCacheEndpoints().init_state(None, FastAPI().state, Namespace()))
