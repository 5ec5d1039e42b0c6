from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from typing import Any

import pytest
from fastapi import FastAPI
from made_engine import FakeCore, make_engine, make_job, make_turn
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send
from vllm import SamplingParams
from vllm.entrypoints.generate.base.serving import GenerateBaseServing
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest
from vllm.entrypoints.scale_out.token_in_token_out.serving import ServingTokens
from vllm.exceptions import VLLMValidationError

from agentcache.engine.constants import RELEASE_METHOD, ROLES_ARGUMENT
from agentcache.engine.jobs.told_prompt import asking_agent
from agentcache.server.client_sessions import MAX_SESSION_CHARACTERS, SESSION_HEADER, bound_session
from agentcache.server.job_reader import JobReader
from agentcache.server.session_headers import SessionHeaders, watch_sessions

App = Callable[[Scope, Receive, Send], Awaitable[None]]
FINAL = {"x-dynamo-session-final": "true"}


def find_session(scope: Scope, **body: Any) -> str | None:
    """What vLLM does with a chat request that is valid."""
    chat = ChatCompletionRequest.model_validate({"messages": [], **body})
    return GenerateBaseServing._get_session_id(chat, Request(scope))


async def answer_nothing(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
    find_session(scope)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class Server:
    """The middleware around an app, with a core that notes what it is asked."""

    def __init__(self, app: App) -> None:
        self.core = FakeCore((make_engine(), [make_job("mine", make_turn(0, 1.0))]))
        self.sent: list[Message] = []
        self.seen: Scope = {}
        self._app = app
        self._state_of = FastAPI()
        self._state_of.state.agentcache_jobs = JobReader(self.core.call)

    async def request(
        self, headers: dict[str, str], *, path: str = "/v1/chat/completions", method: str = "POST", root: str = ""
    ) -> None:
        async def note(scope: Scope, receive: Receive, send: Send) -> None:
            self.seen = scope
            await self._app(scope, receive, send)

        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        scope = {
            **{"type": "http", "method": method, "path": root + path, "root_path": root},
            **{"headers": raw, "app": self._state_of},
        }
        await SessionHeaders(note)(scope, self._receive, self._send)

    @property
    def released(self) -> list[Any]:
        """Sessions, where there is but one tenant."""
        assert all(tenants == [None] for _, _, tenants in self.core.calls)
        return [session for method, session, _ in self.core.calls if method == RELEASE_METHOD]

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    async def _receive(self) -> Message:
        """The client stays, and sends nothing."""
        await asyncio.Event().wait()
        raise AssertionError


async def settle() -> None:
    """Let the tasks that stand ready run, and those that they start."""
    for _ in range(10):
        await asyncio.sleep(0)


def run_request(headers: dict[str, str], *, app: App = answer_nothing, **where: Any) -> Server:
    server = Server(app)

    async def run() -> None:
        await server.request(headers, **where)
        await settle()

    asyncio.run(run())
    return server


@pytest.mark.parametrize(
    ("headers", "session"),
    [
        ({"x-dynamo-session-id": "theirs"}, "theirs"),
        ({"X-Dynamo-Session-ID": "theirs", "x-session-id": ""}, "theirs"),
        ({"x-dynamo-session-id": "theirs", "X-Session-ID": "own"}, "own"),
        ({"x-dynamo-session-id": "caf\xe9/1"}, "caf\xe9/1"),
        ({"X-Session-ID": "own"}, "own"),
        ({"X-Claude-Code-Session-Id": "claude"}, "claude"),
        ({"session-id": "codex"}, "codex"),
        ({"session_id": "codex"}, "codex"),
        ({"x-session-affinity": "opencode"}, "opencode"),
        ({"x-session-affinity": "router", "x-claude-code-session-id": "claude"}, "claude"),
        ({"x-session-affinity": "opencode", "X-Session-ID": "own"}, "own"),
        ({"session-id": "", "x-session-affinity": "opencode"}, "opencode"),
        ({"x-dynamo-session-id": ""}, None),
        ({}, None),
    ],
)
def test_vllm_finds_the_session_and_the_same_one_is_released(headers: dict[str, str], session: str | None) -> None:
    server = run_request(headers | FINAL)
    assert (Request(server.seen).headers.get(SESSION_HEADER) or None) == session
    assert server.released == ([session] if session else [])


@pytest.mark.parametrize(
    ("headers", "agent"),
    [
        ({"X-Claude-Code-Agent-Id": "a-1", "x-claude-code-parent-agent-id": "main"}, "a-1"),
        ({"thread-id": "codex"}, "codex"),
        ({"x-claude-code-agent-id": " ", "thread-id": "codex"}, "codex"),
        ({"x-claude-code-agent-id": "caf\xc3\xa9"}, "café"),
        ({"x-claude-code-session-id": "s"}, None),
    ],
)
def test_the_agent_is_known_while_its_request_is_served(headers: dict[str, str], agent: str | None) -> None:
    asking: list[str | None] = []

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        asking.append(asking_agent.get())
        await answer_nothing(scope, receive, send)

    for final in ({}, FINAL):
        run_request(headers | final, app=serve)
    assert asking == [agent, agent]
    assert asking_agent.get() is None


@pytest.fixture(autouse=True)
def _watching(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("_get_session_id", "_get_session_id_from_headers"):
        monkeypatch.setattr(GenerateBaseServing, name, staticmethod(getattr(GenerateBaseServing, name)))
    monkeypatch.setattr(ServingTokens, "serve_tokens", ServingTokens.serve_tokens)
    watch_sessions.cache_clear()
    watch_sessions()
    yield
    watch_sessions.cache_clear()


@pytest.mark.parametrize("name", ["X-Session-ID", "session-id"])
@pytest.mark.parametrize(
    ("value", "session"),
    [
        ("café☃".encode(), "café☃"),
        ("café".encode("latin-1"), "café"),
        (("☃" * MAX_SESSION_CHARACTERS).encode(), "☃" * MAX_SESSION_CHARACTERS),
        (("☃" * 5000).encode(), bound_session("☃" * 5000)),
    ],
    ids=["UTF-8", "Latin-1", "long", "too long"],
)
def test_a_name_in_a_header_is_that_of_a_body(name: str, value: bytes, session: str) -> None:
    assert run_request({name: value.decode("latin-1")} | FINAL).released == [session]
    no_header: Scope = {"type": "http", "headers": []}
    assert find_session(no_header, session_id=session) == session
    # No bytes of a header are taken for a body's.
    assert find_session(no_header, session_id="cafÃ©") == "cafÃ©"


@pytest.mark.parametrize(
    ("headers", "body", "session"),
    [
        ({}, {"session_id": "its own"}, "its own"),
        ({"x-session-id": "another"}, {"session_id": "its own"}, "its own"),
        ({}, {"vllm_xargs": {"session_id": "its own"}}, "its own"),
        ({"x-session-id": "another"}, {"vllm_xargs": {"session_id": "its own"}}, "another"),
        ({}, {}, None),
    ],
)
def test_the_session_that_vllm_finds_is_released(
    headers: dict[str, str], body: dict[str, Any], session: str | None
) -> None:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
        assert find_session(scope, **body) == session

    async def run(app: App) -> list[Any]:
        server = Server(app)
        await server.request(headers | FINAL)
        await settle()
        return server.released

    assert asyncio.run(run(serve)) == ([session] if session else [])


def test_only_the_job_of_the_clients_own_tenant_is_released() -> None:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
        find_session(scope, session_id="mine", cache_salt="tenant")

    assert run_request(FINAL, app=serve).core.calls == [(RELEASE_METHOD, "mine", ["tenant"])]


def test_requests_of_tokens_release_the_job_of_their_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServingTokens, "_check_model", lambda *_: refuse())
    handler = ServingTokens.__new__(ServingTokens)

    async def refuse() -> str:
        return "no such model"

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
        body = GenerateRequest(token_ids=[1], sampling_params=SamplingParams(), cache_salt="tenant")
        assert await handler.serve_tokens(body, Request(scope)) == "no such model"

    server = run_request({"x-dynamo-session-id": "mine"} | FINAL, app=serve, path="/inference/v1/generate")
    assert server.core.calls == [(RELEASE_METHOD, "mine", ["tenant"])]


def test_requests_of_tokens_may_not_tell_what_we_tell() -> None:
    handler = ServingTokens.__new__(ServingTokens)
    params = SamplingParams(extra_args={ROLES_ARGUMENT: "u"})
    body = GenerateRequest(token_ids=[1], sampling_params=params, stream=True)
    with pytest.raises(VLLMValidationError, match=f"^{ROLES_ARGUMENT}: "):
        handler.serve_tokens(body, Request({"type": "http", "headers": []}))


def test_a_request_that_vllm_cannot_read_ends_nothing() -> None:
    """Its body may name a tenant: what the header alone names is somebody else's."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
        await send({"type": "http.response.start", "status": 400, "headers": []})

    assert run_request({"x-session-id": "mine"} | FINAL, app=refuse).core.calls == []


@pytest.mark.parametrize("session", ["\ud800", "a\udfffb"])
def test_a_session_that_is_no_text_is_the_client_s_error(session: str) -> None:
    for body in ({"session_id": session}, {"vllm_xargs": {"session_id": session}}):
        with pytest.raises(VLLMValidationError, match="session_id: must be text") as caught:
            find_session({"type": "http", "headers": []}, **body)
        assert str(caught.value).isascii()


@pytest.mark.parametrize(
    ("value", "is_final"),
    [("true", True), ("1", True), (" True ", True), ("false", False), ("0", False), ("", False), ("yes", False)],
)
def test_only_a_final_request_releases(value: str, is_final: bool) -> None:
    server = run_request({"x-session-id": "mine", "x-dynamo-session-final": value})
    assert server.released == (["mine"] if is_final else [])


@pytest.mark.parametrize(
    ("where", "releases"),
    [
        ({}, True),
        ({"root": "/proxy"}, True),
        ({"path": "/metrics"}, False),
        ({"path": "/health"}, False),
        ({"path": "/invocations"}, False),
        ({"method": "GET"}, False),
    ],
)
def test_only_requests_that_the_api_key_guards_release(where: dict[str, str], releases: bool) -> None:
    server = run_request({"x-session-id": "mine"} | FINAL, **where)
    assert server.released == (["mine"] if releases else [])


def test_the_session_is_released_after_the_last_byte_undelayed() -> None:
    chunks: asyncio.Queue[bytes] = asyncio.Queue()

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        async def read() -> Any:
            find_session(scope)
            while chunk := await chunks.get():
                yield chunk

        await StreamingResponse(read())(scope, receive, send)

    async def run() -> None:
        server = Server(stream)
        request = asyncio.create_task(server.request({"x-session-id": "mine"} | FINAL))
        for count, chunk in enumerate([b"one", b"two"], start=2):
            await chunks.put(chunk)
            await settle()
            assert server.sent[-1]["body"] == chunk
            assert len(server.sent) == count
            assert server.released == []
        await chunks.put(b"")
        await request
        await settle()
        assert not server.sent[-1]["more_body"]
        assert server.released == ["mine"]

    asyncio.run(run())


def test_a_client_that_goes_releases_as_well() -> None:
    async def hang(scope: Scope, *_: Any) -> None:
        find_session(scope)
        await asyncio.Event().wait()

    async def run() -> None:
        server = Server(hang)
        request = asyncio.create_task(server.request({"x-session-id": "mine"} | FINAL))
        await settle()
        assert server.released == []
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await settle()
        assert server.released == ["mine"]

    asyncio.run(run())


def test_a_request_that_fails_releases_and_fails_on() -> None:
    async def fail(scope: Scope, *_: Any) -> None:
        find_session(scope)
        raise ValueError("broken")

    async def run() -> None:
        server = Server(fail)
        with pytest.raises(ValueError, match="broken"):
            await server.request({"x-session-id": "mine"} | FINAL)
        await settle()
        assert server.released == ["mine"]

    asyncio.run(run())


def test_a_release_that_fails_is_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(answer_nothing)
    server.core.failure = Exception("the core\nis gone")

    async def run() -> None:
        await server.request({"x-session-id": "mine"} | FINAL)
        await settle()

    logging.getLogger("vllm").addHandler(caplog.handler)
    try:
        asyncio.run(run())
    finally:
        logging.getLogger("vllm").removeHandler(caplog.handler)
    assert "the core is gone" in caplog.text
    assert "A session that its client called final was not released" in caplog.text
    assert server.sent[0]["status"] == 200


@pytest.mark.parametrize(("size", "status"), [(2**20, HTTPStatus.OK), (2**20 + 1, 431)])
def test_headers_of_more_than_a_mebibyte_are_refused(size: int, status: int) -> None:
    others = FINAL | {"a": "x" * 1000, "x-session-id": ""}
    session = "x" * (size - sum(len(name + value) for name, value in others.items()))
    server = run_request(others | {"x-session-id": session})
    start, body = server.sent
    assert start["status"] == status
    assert (server.released == []) == (status == 431)
    if status == 431:
        assert "larger than 1 MiB together; send a shorter" in json.loads(body["body"])["error"]["message"]


def test_other_traffic_passes_untouched() -> None:
    scopes: list[Scope] = []

    async def note(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
        scopes.append(scope)

    scope = {"type": "lifespan"}
    server = Server(answer_nothing)
    asyncio.run(SessionHeaders(note)(scope, server._receive, server._send))
    assert scopes == [scope]
    assert scopes[0] is scope
