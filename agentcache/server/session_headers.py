"""Handles the session headers of agents and of NVIDIA Dynamo's clients, which vLLM itself ignores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache, wraps
from http import HTTPStatus
from typing import Any, NamedTuple

from starlette.datastructures import Headers, State
from starlette.types import ASGIApp, Receive, Scope, Send

from agentcache.engine.jobs.told_prompt import asking_agent
from agentcache.engine.marks import refuse_marks
from agentcache.engine.vllm.base import VLLMValidationError, init_logger
from agentcache.engine.vllm.patches import replace, wrap_method
from agentcache.engine.vllm.serving import (
    AnthropicServingMessages,
    GenerateBaseServing,
    ServingTokens,
    authenticate,
    create_error_response,
)
from agentcache.errors import in_one_line
from agentcache.server.client_sessions import (
    SESSION_HEADER,
    bound_session,
    find_agent,
    find_cache_key,
    find_header,
    find_user_session,
    read_header,
)
from agentcache.server.error_answer import answer_error
from agentcache.server.job_reader import JobReader

logger = init_logger("vllm.agentcache")

# Only one of uvicorn's two parsers has a limit of its own.
_MAX_HEADERS = 2**20
DYNAMO_FINAL_HEADER = "x-dynamo-session-final"

# The sessions and cache salts that vLLM has found for the HTTP request in progress: the body has the salt, and may name
# another session than the headers. None where it is not asked for.
_found: ContextVar[set[tuple[str, str | None]] | None] = ContextVar("agentcache_sessions", default=None)


class _MessageBody(NamedTuple):
    session: str | None = None
    user_session: str | None = None


# What the body of the Anthropic message in progress says of its session; None in other requests.
_body: ContextVar[_MessageBody | None] = ContextVar("agentcache_message", default=None)


@cache
def watch_sessions() -> None:
    """Learn which session vLLM finds for a request, and refuse what is no text. Safe to call more than once."""
    original, from_headers = GenerateBaseServing._get_session_id, GenerateBaseServing._get_session_id_from_headers

    @wraps(from_headers)
    def get_session_id_from_headers(raw_request: Any) -> str | None:
        session = from_headers(raw_request)
        return session and read_header(session)

    @wraps(original)
    def get_session_id(request: Any, raw_request: Any) -> str | None:
        body = _body.get() or _MessageBody()
        session = body.session or original(request, raw_request) or body.user_session
        # A chat may have fields that vLLM does not know.
        session = session or find_cache_key(getattr(request, "prompt_cache_key", None))
        if session:
            _check_text(session)
            session = bound_session(session)
            _note(session, request)
        return session

    replace(GenerateBaseServing, "_get_session_id_from_headers", staticmethod(get_session_id_from_headers))
    replace(GenerateBaseServing, "_get_session_id", staticmethod(get_session_id))
    wrap_method(ServingTokens, "serve_tokens", _watch_tokens)
    wrap_method(AnthropicServingMessages, "create_messages", _read_message_body)


def _read_message_body(original: Callable[..., Any]) -> Callable[..., Any]:
    """Read the session from the body of an Anthropic message, of which vLLM keeps what it knows alone."""

    async def create_messages(self: AnthropicServingMessages, request: Any, raw_request: Any = None) -> Any:
        # Parsed before, and kept.
        body = await raw_request.json() if raw_request is not None else {}
        session = body.get("session_id")
        if session is not None:
            try:
                _check_text(session)
            except VLLMValidationError as error:
                return create_error_response(error)
        token = _body.set(_MessageBody(session, find_user_session(request.metadata)))
        try:
            return await original(self, request, raw_request)
        finally:
            _body.reset(token)

    return create_messages


def _watch_tokens(original: Callable[..., Any]) -> Callable[..., Any]:
    """Watch requests of tokens, of which vLLM looks for the session in the headers alone."""

    def serve_tokens(self: ServingTokens, request: Any, raw_request: Any = None) -> Any:
        # Before an answer that is streamed has begun.
        refuse_marks(request.sampling_params.extra_args)
        if session := self._get_session_id_from_headers(raw_request):
            _note(session, request)
        return original(self, request, raw_request)

    return serve_tokens


def _check_text(session: object) -> None:
    """Raise what the server answers as a 400 for a session that is no text."""
    if not isinstance(session, str):
        raise VLLMValidationError("session_id: must be text", parameter="session_id")
    try:
        session.encode()
    except UnicodeEncodeError:
        # Half a surrogate pair, as JSON can spell it; it would not reach the engine.
        raise VLLMValidationError("session_id: must be text that UTF-8 can encode", parameter="session_id") from None


def _note(session: str, request: Any) -> None:
    if (found := _found.get()) is not None:
        found.add((session, request.cache_salt))


class SessionHeaders:
    """ASGI middleware: headers name the session and its agent, `x-dynamo-session-final: true` marks its last request.

    The session's job is released when the answer to that request has been sent, or its client has gone. A request
    that vLLM refuses before it has found the session ends nothing: only a valid body says whose tenant's job is meant.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        # A task without a reference may be garbage-collected before it is done.
        self._releases: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; behind the session's last one, release the session's job."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if sum(len(name) + len(value) for name, value in scope["headers"]) > _MAX_HEADERS:
            await _refuse_headers(scope, receive, send)
            return
        headers = Headers(scope=scope)
        own = headers.get(SESSION_HEADER)
        if (session := _find_session(headers)) and session != own:
            scope = {**scope, "headers": _name_session(scope["headers"], session)}
        token = asking_agent.set(find_agent(headers))
        try:
            await self._serve(scope, receive, send, is_final=_is_final(headers) and _is_guarded(scope))
        finally:
            asking_agent.reset(token)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, *, is_final: bool) -> None:
        if not is_final:
            await self._app(scope, receive, send)
            return
        found = set[tuple[str, str | None]]()
        token = _found.set(found)
        try:
            await self._app(scope, receive, send)
        finally:
            _found.reset(token)
            self._release(scope["app"].state, found)

    def _release(self, state: State, found: set[tuple[str, str | None]]) -> None:
        """Release the jobs in tasks of their own: a client that has gone may have cancelled this one."""
        for session, tenant in found:
            release = asyncio.create_task(_release(state, session, tenant))
            self._releases.add(release)
            release.add_done_callback(self._releases.discard)


async def _refuse_headers(scope: Scope, receive: Receive, send: Send) -> None:
    message = "The request's headers are larger than 1 MiB together; send a shorter X-Session-ID and fewer others."
    await answer_error(message, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)(scope, receive, send)


def _find_session(headers: Headers) -> str:
    """Find the session as the header that vLLM reads is to have it, shortened if it is too long; empty for none."""
    found = headers.get(SESSION_HEADER) or find_header(headers) or ""
    session = read_header(found)
    return found if (bounded := bound_session(session)) == session else bounded


def _name_session(headers: list[tuple[bytes, bytes]], session: str) -> list[tuple[bytes, bytes]]:
    name = SESSION_HEADER.lower().encode()
    # Otherwise an empty header of that name would be found before ours.
    return [(key, value) for key, value in headers if key.lower() != name] + [(name, session.encode("latin-1"))]


def _is_final(headers: Headers) -> bool:
    return headers.get(DYNAMO_FINAL_HEADER, "").strip().lower() in ("true", "1")


def _is_guarded(scope: Scope) -> bool:
    """Tell whether the request needed the API key, if there is one: on other paths anybody could end a job."""
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return scope["method"] == "POST" and path.startswith(tuple(authenticate.GUARDED_PREFIX))


async def _release(state: State, session: str, tenant: str | None) -> None:
    try:
        jobs: JobReader = state.agentcache_jobs
        await jobs.release(session, [tenant])
    except Exception as error:
        # The answer has been sent, and the job's pins expire by themselves.
        logger.warning("A session that its client called final was not released: %s", in_one_line(error))
