"""Tells the router of sessions that expired: idle for too long, though their client never ended them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from agentcache.engine.vllm.base import init_logger
from agentcache.errors import ServerError
from agentcache.server.job_reader import JobReader

logger = init_logger("vllm.agentcache")

# A session is idle for an hour before; a minute more changes nothing.
POLL_S = 60.0


async def watch_expiry(jobs: JobReader, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Ask once a minute, until cancelled. An engine that has nothing to do takes no steps, and tells nothing itself."""
    while True:
        await sleep(POLL_S)
        try:
            await jobs.tell_expired()
        except ServerError as error:
            # What the engine tells too late is not told: the router forgets it by itself.
            logger.warning("agentcache: the router was not told which sessions were idle for too long: %s", error)
