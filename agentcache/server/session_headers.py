"""Reads which session each HTTP request names, and releases the session behind its last one."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from starlette.datastructures import Headers, State
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from agentcache.engine.vllm.base import init_logger
from agentcache.engine.vllm.serving import validate_json_request
from agentcache.errors import in_one_line
from agentcache.front_end.client_sessions import SESSION_HEADER, SessionRequest, asking
from agentcache.front_end.family_roots import FamilyRoots
from agentcache.front_end.request_marks import refuse_marks
from agentcache.front_end.tenant_salts import find_salting, salting
from agentcache.server.access import needs_key
from agentcache.server.job_reader import JobReader
from agentcache.server.routes import answer_error

logger = init_logger("vllm.agentcache")

# Only one of uvicorn's two parsers has a limit of its own.
_MAX_HEADERS = 2**20
DYNAMO_FINAL_HEADER = "x-dynamo-session-final"


async def read_body(request: Request) -> None:
    """Read the body of a request with JSON, which its route has parsed; vLLM keeps of it what it knows alone.

    This takes the place of what vLLM's routes with JSON depend on.
    """
    await validate_json_request(request)
    asked = asking.get()
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        # The route says so.
        return
    if asked is None or not isinstance(body, dict):
        return
    asked.read_body(body, request.scope["route"].path)
    if isinstance(params := body.get("sampling_params"), dict) and isinstance(params.get("extra_args"), dict):
        # Requests of tokens find no session in their body: a stream would have begun before these are looked at.
        refuse_marks(params["extra_args"])


class SessionHeaders:
    """ASGI middleware: headers name the session and its agent, `x-dynamo-session-final: true` marks its last request.

    The session's job is released when the answer to that request has been sent, or its client has gone. A request
    that vLLM refuses before it has found the session ends nothing: only a valid body says whose tenant's job is meant.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._roots = FamilyRoots()
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
        jobs: JobReader | None = getattr(scope["app"].state, "agentcache_jobs", None)
        salt = find_salting(headers, None if jobs is None else jobs.shares)
        asked = SessionRequest(headers, self._roots, salt)
        if asked.header and asked.header != headers.get(SESSION_HEADER):
            scope = {**scope, "headers": _name_session(scope["headers"], asked.header)}
        is_final = _is_final(headers) and needs_key(scope)
        token, salt_token = asking.set(asked), salting.set(salt)
        try:
            await self._app(scope, receive, send)
        finally:
            asking.reset(token)
            salting.reset(salt_token)
            # A task that vLLM has begun meanwhile keeps this context for as long as it runs.
            asked.message = None
            if is_final:
                self._release(scope["app"].state, {(session, salt(own)) for session, own in asked.found})

    def _release(self, state: State, found: set[tuple[str, str | None]]) -> None:
        """Release the jobs in tasks of their own: a client that has gone may have cancelled this one."""
        for session, tenant in found:
            release = asyncio.create_task(_release(state, session, tenant))
            self._releases.add(release)
            release.add_done_callback(self._releases.discard)


async def _refuse_headers(scope: Scope, receive: Receive, send: Send) -> None:
    message = "The request's headers are larger than 1 MiB together; send a shorter X-Session-ID and fewer others."
    await answer_error(message, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)(scope, receive, send)


def _name_session(headers: list[tuple[bytes, bytes]], session: str) -> list[tuple[bytes, bytes]]:
    name = SESSION_HEADER.lower().encode()
    # Otherwise an empty header of that name would be found before ours.
    return [(key, value) for key, value in headers if key.lower() != name] + [(name, session.encode("latin-1"))]


def _is_final(headers: Headers) -> bool:
    return headers.get(DYNAMO_FINAL_HEADER, "").strip().lower() in ("true", "1")


async def _release(state: State, session: str, tenant: str | None) -> None:
    try:
        jobs: JobReader = state.agentcache_jobs
        await jobs.release(session, [tenant])
    except Exception as error:
        # The answer has been sent, and the job's pins expire by themselves.
        logger.warning("A session that its client called final was not released: %s", in_one_line(error))
