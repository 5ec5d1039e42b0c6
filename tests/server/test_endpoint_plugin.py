"""The routes on an app without an engine: what they answer when there is nothing to tell."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from made_engine import FakeCore, make_engine, make_job, make_turn
from starlette.datastructures import State
from starlette.testclient import TestClient
from vllm.engine.async_llm_engine import AsyncLLMEngine
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.serve.middleware import authenticate
from vllm.plugins.endpoint_plugins.interface import EndpointPlugin
from vllm.tool_parsers import ToolParserManager
from vllm_internals import find_session

from agentcache.engine.constants import RELEASE_METHOD, SCHEDULER_CLASS
from agentcache.engine.rpc.snapshot import SNAPSHOT_METHOD
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.vllm.compat import check_vllm
from agentcache.errors import CompatibilityError
from agentcache.front_end.server_options import LIVE_PATH
from agentcache.server.access import GUARDED
from agentcache.server.endpoint_plugin import AgentCacheEndpoints
from agentcache.server.job_reader import JobReader
from agentcache.server.live_report import LiveReport
from agentcache.server.routes import router
from agentcache.server.snapshot_reader import SnapshotReader

KEY = "secret-key"


@pytest.fixture(autouse=True)
def _as_installed() -> Iterator[None]:
    check_vllm.cache_clear()
    yield
    check_vllm.cache_clear()


def make_client(answers: list[Any] | Exception) -> TestClient:
    async def ask() -> list[Any]:
        if isinstance(answers, Exception):
            raise answers
        return answers

    app = FastAPI()
    app.include_router(router)
    app.state.agentcache_snapshots = SnapshotReader(ask)
    app.state.agentcache_jobs = JobReader(ask)
    return TestClient(app)


def test_it_is_what_vllm_asks_for() -> None:
    assert isinstance(AgentCacheEndpoints(), EndpointPlugin)


def test_state_of_a_stock_engine_is_not_found() -> None:
    answer = make_client([None]).get("/agentcache/state")
    assert (answer.status_code, answer.json()["detail"]) == (404, "The engine runs without agentcache's scheduler.")


def test_state_before_the_first_answer_is_unavailable() -> None:
    assert make_client(Exception("Server shutting down")).get("/agentcache/state").status_code == 503


def test_an_app_without_metrics_is_refused() -> None:
    app = FastAPI()
    app.state.args = Namespace(api_key=None)
    with pytest.raises(CompatibilityError, match="no route /metrics"):
        AgentCacheEndpoints().attach_router(app)


@pytest.mark.parametrize("guarded", [("/other",), None])
def test_a_server_that_guards_its_paths_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch, guarded: Any) -> None:
    monkeypatch.setattr(authenticate, "GUARDED_PREFIX", guarded)
    with pytest.raises(CompatibilityError, match="which paths need the API key"):
        AgentCacheEndpoints().attach_router(FastAPI())


def test_a_broken_call_is_one_line(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = ToolParserManager.get_tool_parser("hermes")
    monkeypatch.setattr(logging.getLogger(parser.__module__), "filters", [])
    monkeypatch.setattr(logging.getLogger("vllm"), "handlers", [caplog.handler])
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", False)
    engine = AsyncLLMEngine.__new__(AsyncLLMEngine)
    engine.engine_core, engine.renderer = Mock(), Mock(tokenizer=None)
    engine.vllm_config = Mock(scheduler_config=Mock(scheduler_cls=None))
    asyncio.run(AgentCacheEndpoints().init_state(engine, State(), Namespace()))
    found = parser(Mock()).extract_tool_calls('<tool_call>{"name": broken</tool_call>', Mock())
    assert not found.tools_called
    (record,) = caplog.records
    text = "Error in extracting tool call from response. JSONDecodeError: Expecting value: line 1 column 10 (char 9)"
    assert logging.Formatter().format(record) == text


def make_guarded_app(core: FakeCore, keys: Sequence[str] = (KEY,)) -> FastAPI:
    """Our plug-in in the order in which vLLM puts it into a server with an API key."""
    app = FastAPI()
    app.state.args = Namespace(api_key=list(keys))

    @app.get("/metrics")
    async def answer() -> str:
        return "vLLM's own"

    @app.post("/v1/completions")
    async def complete(raw_request: Request) -> str:
        chat = ChatCompletionRequest.model_validate({"messages": []})
        find_session(chat, raw_request)
        return "vLLM's own"

    AgentCacheEndpoints().attach_router(app)
    app.add_middleware(authenticate.AuthenticationMiddleware, tokens=list(keys))
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


class FrontEnd(AsyncLLMEngine):
    """As much of it as our plug-in looks at."""

    def __init__(self, core: FakeCore, scheduler: str | type[Any] | None) -> None:
        found: Any = self
        found.engine_core = SimpleNamespace(call_utility_all_async=core.call)
        found.renderer = SimpleNamespace(tokenizer=None)
        found.vllm_config = SimpleNamespace(
            scheduler_config=SimpleNamespace(scheduler_cls=scheduler), additional_config=None
        )

    def __del__(self) -> None:
        pass


@pytest.mark.parametrize(
    ("scheduler", "status"),
    [
        (None, 404),
        ("vllm.v1.core.sched.async_scheduler.AsyncScheduler", 404),
        (SCHEDULER_CLASS, 200),
        (AgentScheduler, 200),
        ("forgetful_scheduler.ForgetfulScheduler", 200),
    ],
)
def test_only_an_engine_with_our_scheduler_is_asked(scheduler: str | type[Any] | None, status: int) -> None:
    """Another one's engine core would log that it has no such method, at every scrape."""
    core = FakeCore((make_engine(), []))
    app = FastAPI()
    app.include_router(router)
    asyncio.run(AgentCacheEndpoints().init_state(FrontEnd(core, scheduler), app.state, Namespace()))
    with TestClient(app) as client:
        assert client.get("/agentcache/state").status_code == status
    assert bool(core.calls) == (status == 200)


def test_every_route_of_ours_but_one_page_is_guarded() -> None:
    app = make_guarded_app(FakeCore((make_engine(), [])))
    paths = [route.path for route in app.routes if isinstance(route, APIRoute) and "agentcache" in route.path]
    assert [path for path in paths if not f"{path}/".startswith(GUARDED)] == [LIVE_PATH]
    assert len(paths) > 4


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": f"Bearer {KEY}x"}, 401),
        ({"Authorization": f"Basic {KEY}"}, 401),
        ({"Authorization": f"bearer {KEY}"}, 200),
    ],
)
def test_the_key_is_asked_for_below_our_paths(headers: dict[str, str], status: int) -> None:
    core = FakeCore((make_engine(), []))
    with TestClient(make_guarded_app(core), root_path="/proxy") as client:
        answer = client.get("/proxy/agentcache/state", headers=headers)
        assert answer.status_code == status
        assert status == 200 or (answer.json(), core.calls) == ({"error": "Unauthorized"}, [])
        unknown = client.get("/proxy/agentcache/no-such-route", headers=headers)
        assert unknown.status_code == (401 if status == 401 else 404)
        assert client.options("/proxy/agentcache/state").status_code == 405


def test_without_a_key_all_may_ask() -> None:
    core = FakeCore((make_engine(), []))
    with TestClient(make_guarded_app(core, keys=[""])) as client:
        assert client.get("/agentcache/state").status_code == 200


def test_the_page_that_asks_for_the_key_tells_nothing() -> None:
    core = FakeCore((make_engine(), [make_job("mine", make_turn(0, 1.0))]))
    with TestClient(make_guarded_app(core)) as client:
        answer = client.get(LIVE_PATH)
    assert answer.status_code == 200
    assert core.calls == []
    assert "mine" not in answer.text
    assert 'type="password"' in answer.text
    (script,) = re.findall(r"<script>(.*?)</script>", answer.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = answer.headers["content-security-policy"]
    assert f"script-src 'sha256-{digest}'" in rules, "a browser runs this script and no other"
    assert "connect-src 'self'" in rules
    assert not re.search(r"""(?:src|href)=["'](?!#|data:)""", answer.text)
