"""Asks the engines about jobs, and tells them which one is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from vllm.logger import init_logger

from agentcache.engine.constants import JOB_METHOD, JOBS_METHOD, RELEASE_METHOD
from agentcache.engine.job_views import JobView
from agentcache.errors import ServerError, in_one_line
from agentcache.server.snapshot_reader import ANSWER_WAIT_S, Reading

logger = init_logger("vllm.agentcache")


class EngineJob(JobView):
    """`engine` is the data-parallel rank of the engine that has the job."""

    engine: int


class JobReader:
    """Its methods raise ServerError when an engine does not answer in time, or fails."""

    def __init__(self, call: Callable[..., Awaitable[Sequence[Any]]]) -> None:
        """`call` takes a method of the engine core and its arguments, and gives one answer per engine."""
        self._call = call

    async def find(self, reading: Reading, session: str) -> list[dict[str, Any]]:
        """The session's jobs, each an EngineJob as plain values; none where the engines know none.

        `reading` tells which engines there are.
        """
        return _number(reading, await self._ask(JOB_METHOD, session))

    async def list_latest(self, reading: Reading, limit: int) -> list[dict[str, Any]]:
        """Of each engine up to `limit` jobs, the latest active ones."""
        return _number(reading, await self._ask(JOBS_METHOD, limit))

    async def release(self, session: str, tenants: list[str | None] | None = None) -> bool:
        """The session's jobs are over, their pins may go: of all tenants, or of these, by their cache salts.

        False where no engine knows any.
        """
        return any(await self._ask(RELEASE_METHOD, session, tenants))

    async def _ask(self, method: str, *args: Any) -> Sequence[Any]:
        try:
            return await asyncio.wait_for(self._call(method, *args), ANSWER_WAIT_S)
        except TimeoutError:
            raise ServerError(f"The engine did not answer within {ANSWER_WAIT_S:g} s; try again.") from None
        except Exception as error:
            # vLLM raises a bare Exception for what failed in the engine. Its text is for the log alone.
            logger.warning("The engine could not answer %s: %s", method, in_one_line(error))
            raise ServerError("The engine could not answer; its log says why.") from None


def _number(reading: Reading, answers: Sequence[Sequence[dict[str, Any]] | None]) -> list[dict[str, Any]]:
    ranks = [engine.engine for engine in reading.engines if engine.runtime is not None]
    told = [answer for answer in answers if answer is not None]
    if len(ranks) != len(told):
        raise ServerError("The number of engines has changed; try again.")
    return [{"engine": rank, **job} for rank, jobs in zip(ranks, told, strict=True) for job in jobs]
