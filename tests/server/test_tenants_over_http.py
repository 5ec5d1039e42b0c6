"""Tenants over HTTP: told apart by key or header, each sees its own jobs, and metrics name them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from background_server import AUTHORIZED, SharedServer

from agentcache.server import snapshot_reader

pytestmark = pytest.mark.engine

HEADER = "x-team"
SHARES = {"by": f"header:{HEADER}", "known": {"red": {"weight": 3}, "blue": {"id": "Blau", "limit": 2}}}


@pytest.fixture
def server(shared_server: SharedServer, monkeypatch: pytest.MonkeyPatch) -> SharedServer:
    monkeypatch.setattr(snapshot_reader, "MIN_INTERVAL_S", 0.0)
    shared_server.use("agentcache", tenants=SHARES)
    return shared_server


def ask(server: SharedServer, session: str, team: str | None) -> None:
    headers = AUTHORIZED | {"X-Session-ID": session} | ({} if team is None else {HEADER: team})
    body = {"messages": [{"role": "user", "content": "Tea?"}], "max_tokens": 2}
    httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60).raise_for_status()


def get_model(server: SharedServer) -> str:
    return httpx.get(f"{server.url}/v1/models", headers=AUTHORIZED).raise_for_status().json()["data"][0]["id"]


def get(server: SharedServer, path: str, team: str | None = None) -> httpx.Response:
    headers = AUTHORIZED | ({} if team is None else {HEADER: team})
    return httpx.get(f"{server.url}/agentcache/{path}", headers=headers, timeout=60)


def count_jobs(server: SharedServer, session: str, team: str | None = None) -> int:
    answer = get(server, f"jobs/{session}", team)
    return 0 if answer.status_code == httpx.codes.NOT_FOUND else len(answer.raise_for_status().json()["jobs"])


def test_a_tenant_sees_its_own_jobs_and_the_operator_all(server: SharedServer) -> None:
    for team in ("red", "Blau"):
        ask(server, "same name", team)
    ask(server, "of red", "red")
    assert [count_jobs(server, "same name", team) for team in ("red", "Blau", "other", None)] == [1, 1, 0, 2]
    assert [count_jobs(server, "of red", team) for team in ("red", "Blau", None)] == [1, 0, 1]
    for path in ("jobs", "report", "state"):
        assert get(server, path, "red").status_code == httpx.codes.FORBIDDEN
        assert get(server, path).status_code == httpx.codes.OK


@pytest.mark.parametrize(
    ("door", "body"),
    [
        ("responses", {"input": "Tea?", "max_output_tokens": 2}),
        ("messages", {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "Tea?"}]}),
        ("completions", {"prompt": "Tea?", "max_tokens": 2}),
    ],
)
def test_each_door_knows_the_tenant(server: SharedServer, door: str, body: dict[str, Any]) -> None:
    headers = AUTHORIZED | {"X-Session-ID": door, HEADER: "red"}
    model = {} if "model" not in body else {"model": get_model(server)}
    httpx.post(f"{server.url}/v1/{door}", json=body | model, headers=headers, timeout=60).raise_for_status()
    assert [count_jobs(server, door, team) for team in ("red", "Blau", None)] == [1, 0, 1]


def test_no_tenant_says_whose_child_another_s_session_is(server: SharedServer) -> None:
    headers = AUTHORIZED | {"X-Session-ID": "own", "x-parent-session-id": "elsewhere", HEADER: "Blau"}
    body = {"messages": [{"role": "user", "content": "Tea?"}], "max_tokens": 2}
    httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60).raise_for_status()
    ask(server, "own", "red")
    assert [count_jobs(server, name, "red") for name in ("own", "elsewhere")] == [1, 0]
    assert count_jobs(server, "elsewhere", "Blau") == 1


def test_no_tenant_ends_a_job_of_another(server: SharedServer) -> None:
    ask(server, "kept", "red")
    for team, status in (("Blau", 404), ("red", 200)):
        headers = AUTHORIZED | {HEADER: team}
        assert httpx.delete(f"{server.url}/agentcache/jobs/kept", headers=headers).status_code == status


def test_metrics_name_the_known_and_no_one_else(server: SharedServer) -> None:
    for team in ("red", "Blau", "stranger", None):
        ask(server, "metrics", team)
    text = httpx.get(f"{server.url}/metrics").raise_for_status().text
    turns = [line for line in text.splitlines() if line.startswith("agentcache:tenant_turns_total")]
    names = {line.split('tenant="')[1].split('"')[0] for line in turns}
    assert {"red", "blue", "(none)"} < names
    assert any(name.startswith("sha256:") for name in names)
    assert "stranger" not in text
    assert "Blau" not in get(server, "state").text


def test_keys_tell_tenants_apart_and_are_shown_nowhere(shared_server: SharedServer) -> None:
    key = AUTHORIZED["Authorization"].partition(" ")[2]
    for known, status in (({"mine": {"id": key}}, httpx.codes.FORBIDDEN), ({}, httpx.codes.OK)):
        shares: dict[str, Any] = {"by": "api_key", "known": known}
        shared_server.use("agentcache", tenants=shares)
        ask(shared_server, "by key", None)
        assert get(shared_server, "state").status_code == status, "a key of no known tenant is the operator's"
        assert count_jobs(shared_server, "by key") == 1
    assert key not in get(shared_server, "state").text
    assert key not in httpx.get(f"{shared_server.url}/metrics").text
