"""Tells the router in front of several servers which sessions are over, so that it counts them no longer."""

from __future__ import annotations

import asyncio
from collections import deque

import httpx

from agentcache.engine.vllm.base import init_logger
from agentcache.errors import in_one_line

logger = init_logger("vllm.agentcache")

_ANSWER_WAIT_S = 5.0
# So many are told at a time, and so many wait for that at most. The router forgets by itself what it is not told.
_WORKERS = 4
_MAX_QUEUED = 10_000


class SessionRouter:
    """vllm-router with its policy `sticky_least_loaded`, which otherwise relies on clients for that.

    One client asks for all: each new one would read the certificates of the machine, in the server's own loop.
    """

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """`url` has no path. `transport` None is the network."""
        self._url = url
        self._client = httpx.AsyncClient(base_url=url, timeout=_ANSWER_WAIT_S, transport=transport)
        # The method, the path and the query of each request that waits.
        self._queue: deque[tuple[str, str, dict[str, str]]] = deque()
        # A task without a reference may be garbage-collected before it is done.
        self._tasks: set[asyncio.Task[None]] = set()
        self._reported: str | None = None

    def check(self) -> None:
        """Log one line if the router does not answer, without waiting for it."""
        self._start("GET", "/health")

    def finish(self, session: str) -> None:
        """Tell the router that a session is over, without waiting for it; of too many, the latest are not told."""
        self._start("POST", "/finish_session", session_id=session)

    def _start(self, method: str, path: str, **query: str) -> None:
        if len(self._queue) == _MAX_QUEUED:
            self._report(f"{_MAX_QUEUED:,} sessions wait to be told already")
            return
        self._queue.append((method, path, query))
        if len(self._tasks) < _WORKERS:
            task = asyncio.get_running_loop().create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        """Ask until nothing waits."""
        while self._queue:
            await self._ask(*self._queue.popleft())

    async def _ask(self, method: str, path: str, query: dict[str, str]) -> None:
        try:
            (await self._client.request(method, path, params=query)).raise_for_status()
        except httpx.HTTPStatusError as error:
            self._report(f"it answers {path} with HTTP {error.response.status_code}")
        except httpx.HTTPError as error:
            self._report(in_one_line(error) or type(error).__name__)
        else:
            self._reported = None

    def _report(self, problem: str) -> None:
        """Report a failure, but not the same each time."""
        if problem != self._reported:
            logger.warning(
                "agentcache: router.url %s: the router was not told of a session's end (%s); start it, or leave the "
                "knob out",
                self._url,
                problem,
            )
        self._reported = problem
