"""A chat without a session gets a name that its client is told, the same for every turn and at every server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI, Request
from starlette.testclient import TestClient

from agentcache.server.session_headers import SessionHeaders
from agentcache.server.session_names import SessionNames, find_name

SYSTEM = {"role": "system", "content": "You are an agent."}
OPENING = [SYSTEM, {"role": "user", "content": "Find it."}]
LATER = [*OPENING, {"role": "assistant", "content": "Found."}, {"role": "user", "content": "Where?"}]
UUID = "0123abcd-0000-4000-8000-0123456789ab"


def make_app(*, names: bool = True) -> FastAPI:
    """Answers with the session that it got and the chat."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    @app.post("/v1/completions")
    async def answer(request: Request) -> dict[str, Any]:
        return {"sessions": request.headers.getlist("x-session-id"), "chat": await request.json()}

    app.add_middleware(SessionNames)
    app.add_middleware(SessionHeaders)
    app.state.agentcache_names_sessions = names
    return app


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(make_app()) as found:
        yield found


def test_all_turns_get_one_name_and_their_client_is_told(client: TestClient) -> None:
    answers = [client.post("/v1/chat/completions", json={"messages": messages}) for messages in (OPENING, LATER)]
    names = {answer.headers["X-Session-ID"] for answer in answers}
    assert len(names) == 1
    assert [answer.json()["sessions"] for answer in answers] == [list(names)] * 2
    assert answers[1].json()["chat"] == {"messages": LATER}


def test_a_body_in_pieces_comes_whole(client: TestClient) -> None:
    text = json.dumps({"messages": LATER}).encode()
    answer = client.post("/v1/chat/completions", content=iter([text[:20], text[20:]]))
    assert answer.json()["chat"] == {"messages": LATER}
    assert answer.headers["X-Session-ID"] == find_name(text)


def test_an_empty_header_is_no_name(client: TestClient) -> None:
    answer = client.post("/v1/chat/completions", json={"messages": OPENING}, headers={"X-Session-ID": ""})
    assert answer.json()["sessions"] == [answer.headers["X-Session-ID"]]


@pytest.mark.parametrize("header", ["X-Session-ID", "x-claude-code-session-id"])
def test_a_client_s_own_name_stays(header: str, client: TestClient) -> None:
    answer = client.post("/v1/chat/completions", json={"messages": OPENING}, headers={header: "own"})
    assert answer.json()["sessions"] == ["own"]
    assert "X-Session-ID" not in answer.headers


@pytest.mark.parametrize(
    ("names", "path", "chat"),
    [
        (False, "/v1/chat/completions", {"messages": OPENING}),
        (True, "/v1/completions", {"messages": OPENING}),
        (True, "/v1/chat/completions", {"messages": OPENING, "session_id": "own"}),
        (True, "/v1/chat/completions", {"messages": OPENING, "prompt_cache_key": UUID}),
        (True, "/v1/chat/completions", {"messages": [SYSTEM]}),
        (True, "/v1/chat/completions", {"messages": "text"}),
        (True, "/v1/chat/completions", ["no chat"]),
    ],
)
def test_what_needs_no_name_gets_none(names: bool, path: str, chat: Any) -> None:
    with TestClient(make_app(names=names)) as client:
        answer = client.post(path, json=chat)
    assert answer.json() == {"sessions": [], "chat": chat}
    assert "X-Session-ID" not in answer.headers


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [SYSTEM, {"role": "user", "content": "Find that."}]},
        {"messages": OPENING[1:]},
        {"messages": OPENING, "cache_salt": "tenant"},
        {"messages": OPENING, "system": "Be brief."},
    ],
)
def test_chats_that_begin_otherwise_have_other_names(change: dict[str, Any]) -> None:
    assert find_name(json.dumps(change).encode()) not in (None, find_name(json.dumps({"messages": OPENING}).encode()))


def test_no_json_is_no_chat() -> None:
    assert find_name(b"\xff{") is None
