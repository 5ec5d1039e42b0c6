"""The session headers of NVIDIA Dynamo's clients, as far as vLLM has no ear for them."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any

from starlette.datastructures import Headers, State
from starlette.types import ASGIApp, Receive, Scope, Send
from vllm.entrypoints.generate.base.serving import GenerateBaseServing
from vllm.entrypoints.serve.middleware import authenticate
from vllm.logger import init_logger

from agentcache.errors import in_one_line
from agentcache.server.job_reader import JobReader

logger = init_logger("vllm.agentcache")

# What vLLM reads.
SESSION_HEADER = "X-Session-ID"
DYNAMO_SESSION_HEADER = "x-dynamo-session-id"
DYNAMO_FINAL_HEADER = "x-dynamo-session-final"

# What vLLM has taken for the sessions, and cache salts, of the HTTP request that is being answered: its body may name
# another than the headers. None where nobody asks.
_found: ContextVar[set[tuple[str, str | None]] | None] = ContextVar("agentcache_sessions", default=None)


@cache
def watch_sessions() -> None:
    """Learn which session vLLM finds for a request. Safe to call more than once."""
    original = GenerateBaseServing._get_session_id

    @wraps(original)
    def get_session_id(request: Any, raw_request: Any) -> str | None:
        session = original(request, raw_request)
        if session and (found := _found.get()) is not None:
            found.add((session, getattr(request, "cache_salt", None)))
        return session

    GenerateBaseServing._get_session_id = staticmethod(get_session_id)  # type: ignore[method-assign]


class SessionHeaders:
    """ASGI middleware: `x-dynamo-session-id` names the session, `x-dynamo-session-final: true` its last request.

    The session's job is released when the answer to that request has been sent, or its client has gone.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        # A task that nobody holds may vanish before it is done.
        self._releases: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        session = headers.get(SESSION_HEADER) or headers.get(DYNAMO_SESSION_HEADER)
        if session and not headers.get(SESSION_HEADER):
            scope = {**scope, "headers": _name_session(scope["headers"], session)}
        if not _is_final(headers) or not _is_guarded(scope):
            await self._app(scope, receive, send)
            return
        found = set[tuple[str, str | None]]()
        token = _found.set(found)
        try:
            await self._app(scope, receive, send)
        finally:
            _found.reset(token)
            self._release(scope["app"].state, found or ({(session, None)} if session else set()))

    def _release(self, state: State, found: set[tuple[str, str | None]]) -> None:
        """Not awaited, for a client that has gone may have cancelled us."""
        for session, tenant in found:
            release = asyncio.create_task(_release(state, session, tenant))
            self._releases.add(release)
            release.add_done_callback(self._releases.discard)


def _name_session(headers: list[tuple[bytes, bytes]], session: str) -> list[tuple[bytes, bytes]]:
    name = SESSION_HEADER.lower().encode()
    # An empty header of that name would be found before ours.
    return [(key, value) for key, value in headers if key.lower() != name] + [(name, session.encode("latin-1"))]


def _is_final(headers: Headers) -> bool:
    return headers.get(DYNAMO_FINAL_HEADER, "").strip().lower() in ("true", "1")


def _is_guarded(scope: Scope) -> bool:
    """Whether the request had to show the API key, if there is one: on other paths anybody could end a job."""
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return scope["method"] == "POST" and path.startswith(tuple(authenticate.GUARDED_PREFIX))


async def _release(state: State, session: str, tenant: str | None) -> None:
    try:
        jobs: JobReader = state.agentcache_jobs
        await jobs.release(session, [tenant])
    except Exception as error:
        # The answer has been sent; the job's pins end by themselves later.
        logger.warning("A session that its client called final was not released: %s", in_one_line(error))
