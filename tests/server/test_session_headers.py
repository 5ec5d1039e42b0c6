from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextvars import Context, copy_context
from functools import partial
from http import HTTPStatus
from typing import Any

import pytest
import vllm_internals
from fastapi import Depends, FastAPI
from lone_scheduler import make_config
from made_engine import FakeCore, make_engine, make_job, make_turn
from marked_requests import marking_requests
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send
from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.serve.utils.api_utils import validate_json_request
from vllm.exceptions import VLLMValidationError
from vllm.inputs.engine import tokens_input
from vllm.v1.engine.input_processor import InputProcessor

from agentcache.engine.constants import RELEASE_METHOD, ROLES_ARGUMENT
from agentcache.front_end.client_sessions import MAX_SESSION_CHARACTERS, SESSION_HEADER, asking, bound_session
from agentcache.server.job_reader import JobReader
from agentcache.server.session_headers import SessionHeaders, read_body

App = Callable[[Scope, Receive, Send], Awaitable[None]]
FINAL = {"x-dynamo-session-final": "true"}


def find_session(scope: Scope, **body: Any) -> str | None:
    """What vLLM does with a chat request that is valid."""
    chat = ChatCompletionRequest.model_validate({"messages": [], **body})
    return vllm_internals.find_session(chat, Request(scope)) or None


async def answer_nothing(scope: Scope, receive: Receive, send: Send, **body: Any) -> None:  # noqa: ARG001
    find_session(scope, **body)
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
        await SessionHeaders(note)(scope, self.receive, self.send)

    @property
    def released(self) -> list[Any]:
        """Sessions, where there is but one tenant."""
        assert all(tenants == [None] for _, _, tenants in self.core.calls)
        return [session for method, session, _ in self.core.calls if method == RELEASE_METHOD]

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def receive(self) -> Message:
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
        ({"x-litellm-session-id": "openhands"}, "openhands"),
        ({"x-agent-session-id": "hermes", "x-litellm-session-id": "litellm"}, "litellm"),
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
    agents: list[str | None] = []

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        asked = asking.get()
        assert asked is not None
        agents.append(asked.agent)
        await answer_nothing(scope, receive, send)

    for final in ({}, FINAL):
        run_request(headers | final, app=serve)
    assert agents == [agent, agent]
    assert asking.get() is None


@pytest.fixture(autouse=True)
def _watching() -> Iterator[None]:
    with marking_requests():
        yield


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
    # No bytes of a header are taken for a body's.
    for given in (session, "cafÃ©"):
        server = run_request(FINAL, app=partial(answer_nothing, session_id=given))
        assert server.released == [given]


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


@pytest.mark.parametrize("value", ["mine", "caf\xc3\xa9"])
def test_requests_of_tokens_release_the_job_of_their_tenant(tiny_model_path: str, value: str) -> None:
    processor = InputProcessor(make_config(tiny_model_path, None))
    prompt: Any = {**tokens_input([1]), "cache_salt": "tenant"}
    sessions: list[str | None] = []

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
        found = vllm_internals.find_session_of_tokens(Request(scope))
        made = processor.process_inputs("a", prompt, SamplingParams(), ("generate",), session_id=found)
        sessions.append(made.session_id)

    server = run_request({"x-dynamo-session-id": value} | FINAL, app=serve, path="/inference/v1/generate")
    session = value.encode("latin-1").decode()
    assert sessions == [session]
    assert server.core.calls == [(RELEASE_METHOD, session, ["tenant"])]


UUID = "0123abcd-0123-0123-0123-0123456789ab"


@pytest.mark.parametrize(
    ("path", "headers", "body", "session"),
    [
        ("/v1/chat/completions", {}, {"prompt_cache_key": UUID}, UUID),
        ("/v1/chat/completions", {}, {"prompt_cache_key": "everybody's"}, None),
        ("/v1/chat/completions", {"session-id": "codex"}, {"prompt_cache_key": UUID}, "codex"),
        ("/v1/messages", {}, {"session_id": "its own"}, "its own"),
        ("/v1/messages", {"x-session-id": "another"}, {"session_id": "its own"}, "its own"),
        ("/v1/messages", {}, {"metadata": {"user_id": json.dumps({"session_id": UUID})}}, UUID),
        ("/v1/messages", {"x-session-id": "own"}, {"metadata": {"user_id": json.dumps({"session_id": UUID})}}, "own"),
        ("/v1/chat/completions", {}, {"metadata": {"user_id": json.dumps({"session_id": UUID})}}, None),
        ("/v1/messages", {}, {"metadata": 7}, None),
    ],
)
def test_a_body_names_the_session_where_vllm_does_not_look(
    path: str, headers: dict[str, str], body: dict[str, Any], session: str | None
) -> None:
    assert post(path, {"messages": [], **body}, headers) == (200, session)


def test_the_body_of_a_message_is_not_kept() -> None:
    """A task that begins while it is served, and goes on, has its context."""
    contexts: list[Context] = []
    app = make_app("/v1/messages", lambda _: contexts.append(copy_context()))
    with TestClient(app) as client:
        client.post("/v1/messages", json={"messages": []})
    asked = contexts[0][asking]
    assert asked is not None
    assert asked.message is None


@pytest.mark.parametrize("session", [7, 0, {"a": 1}, "\ud800"])
def test_a_message_whose_session_is_no_text_is_refused(session: object) -> None:
    with pytest.raises(VLLMValidationError, match="session_id: must be text"):
        post("/v1/messages", {"session_id": session})


@pytest.mark.parametrize("arguments", [{ROLES_ARGUMENT: "u"}, {"theirs": 1}, None, 7])
def test_requests_of_tokens_may_not_tell_what_we_tell(arguments: Any) -> None:
    body = {"token_ids": [1], "sampling_params": {"extra_args": arguments}, "stream": True}
    if arguments == {ROLES_ARGUMENT: "u"}:
        with pytest.raises(VLLMValidationError, match=f"^{ROLES_ARGUMENT}: "):
            post("/inference/v1/generate", body)
    else:
        assert post("/inference/v1/generate", body)[0] == 200


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "null", "[" * 10**5], ids=["no text", "half", "a list", "null", "deep"]
)
def test_what_is_no_body_is_the_route_s_to_refuse(text: str) -> None:
    assert post("/invocations", text) == (200, None)


def test_only_json_is_taken() -> None:
    assert post("/invocations", "{}", {"content-type": "text/plain"})[0] == 422


def make_app(path: str, answer: Callable[[Scope], str | None]) -> FastAPI:
    """An app with a route as vLLM's."""
    app = FastAPI()
    app.dependency_overrides[validate_json_request] = read_body

    @app.post(path, dependencies=[Depends(validate_json_request)])
    async def serve(raw_request: Request) -> str | None:
        return answer(raw_request.scope)

    app.add_middleware(SessionHeaders)
    return app


def post(path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, str | None]:
    """Send it to a route that answers with the session which vLLM finds for a chat."""
    app = make_app(path, find_session)
    text = body if isinstance(body, str) else json.dumps(body)
    with TestClient(app) as client:
        answer = client.post(path, content=text, headers={"content-type": "application/json", **(headers or {})})
    return answer.status_code, answer.json()


def test_a_request_that_vllm_cannot_read_ends_nothing() -> None:
    """Its body may name a tenant: what the header alone names is somebody else's."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
        await send({"type": "http.response.start", "status": 400, "headers": []})

    assert run_request({"x-session-id": "mine"} | FINAL, app=refuse).core.calls == []


@pytest.mark.parametrize("session", ["\ud800", "a\udfffb"])
def test_a_session_that_is_no_text_is_the_client_s_error(session: str) -> None:
    for body in ({"session_id": session}, {"vllm_xargs": {"session_id": session}}):
        with pytest.raises(VLLMValidationError, match="session_id: must be text") as caught:
            run_request({}, app=partial(answer_nothing, **body))
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
    asyncio.run(SessionHeaders(note)(scope, server.receive, server.send))
    assert scopes == [scope]
    assert scopes[0] is scope
