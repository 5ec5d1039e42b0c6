"""The routes on an app without an engine: what they answer when there is nothing to tell."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from made_engine import FakeCore, make_engine, make_job, make_turn
from starlette.testclient import TestClient
from vllm.entrypoints.serve.middleware import authenticate
from vllm.plugins.endpoint_plugins.interface import EndpointPlugin

from agentcache.engine.compat import check_server
from agentcache.engine.constants import RELEASE_METHOD
from agentcache.engine.snapshot import SNAPSHOT_METHOD
from agentcache.errors import CompatibilityError
from agentcache.server.endpoint_plugin import AgentCacheEndpoints
from agentcache.server.job_reader import JobReader
from agentcache.server.live_report import LiveReport
from agentcache.server.routes import router
from agentcache.server.snapshot_reader import SnapshotReader

KEY = "secret-key"


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


def make_guarded_app(core: FakeCore) -> FastAPI:
    """Our plug-in in the order in which vLLM puts it into a server with an API key."""
    app = FastAPI()

    @app.post("/v1/completions")
    @app.get("/metrics")
    async def answer() -> str:
        return "vLLM's own"

    AgentCacheEndpoints().attach_router(app)
    app.add_middleware(authenticate.AuthenticationMiddleware, tokens=[KEY])
    app.state.agentcache_snapshots = SnapshotReader(lambda: core.call(SNAPSHOT_METHOD))
    app.state.agentcache_jobs = JobReader(core.call)
    app.state.agentcache_report = LiveReport(app.state.agentcache_jobs)
    return app


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/agentcache/jobs/mine"),
        ("DELETE", "/agentcache/jobs/mine"),
        ("GET", "/agentcache/report"),
        ("POST", "/v1/completions"),
    ],
)
def test_nothing_of_ours_reaches_the_engine_without_the_api_key(method: str, path: str) -> None:
    core = FakeCore((make_engine(), [make_job("mine", make_turn(0, 1.0))]))
    headers = {"x-dynamo-session-id": "mine", "x-dynamo-session-final": "true"}
    with TestClient(make_guarded_app(core)) as client:
        assert client.request(method, path, headers=headers).status_code == 401
        assert core.calls == []
        assert client.request(method, path, headers=headers | {"Authorization": f"Bearer {KEY}"}).status_code == 200
        # It goes through the same loop as the release, which a request does not wait for.
        assert client.get("/metrics").status_code == 200
    assert ((RELEASE_METHOD, "mine", [None] if method == "POST" else None) in core.calls) == (
        method in ("POST", "DELETE")
    )


def test_no_server_comes_up_without_the_engine_to_ask() -> None:
    with pytest.raises(CompatibilityError, match="VLLM_PLUGINS"):
        asyncio.run(AgentCacheEndpoints().init_state(None, FastAPI().state, Namespace()))
