"""Tells the router in front of several servers which sessions are over, so that it counts them no longer."""

from __future__ import annotations

import asyncio

import httpx
from vllm.logger import init_logger

from agentcache.errors import in_one_line

logger = init_logger("vllm.agentcache")

# Nobody waits for it.
_ANSWER_WAIT_S = 5.0


class SessionRouter:
    """vllm-router with its policy `sticky_least_loaded`, which otherwise relies on clients for that."""

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """`url` has no path. `transport` None is the network."""
        self._url = url
        self._transport = transport
        # A task without a reference may be garbage-collected before it is done.
        self._tasks: set[asyncio.Task[None]] = set()
        self._reported: str | None = None

    def check(self) -> None:
        """Log one line if the router does not answer, without waiting for it."""
        self._start("GET", "/health")

    def finish(self, session: str) -> None:
        """Tell the router that a session is over, without waiting for it."""
        self._start("POST", "/finish_session", session_id=session)

    def _start(self, method: str, path: str, **query: str) -> None:
        task = asyncio.get_running_loop().create_task(self._ask(method, path, query))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, method: str, path: str, query: dict[str, str]) -> None:
        try:
            async with httpx.AsyncClient(
                base_url=self._url, timeout=_ANSWER_WAIT_S, transport=self._transport
            ) as client:
                (await client.request(method, path, params=query)).raise_for_status()
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
