"""Asks the engines about jobs, and tells them which one is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import chain, groupby
from typing import Any

from agentcache.engine.constants import EXPIRED_METHOD, JOB_METHOD, JOBS_METHOD, RELEASE_METHOD
from agentcache.engine.observe.stats import MAX_TURNS
from agentcache.engine.views import JobView
from agentcache.engine.vllm.base import init_logger
from agentcache.errors import ServerError, in_one_line
from agentcache.front_end.placer import Placer
from agentcache.policy.replicas.job_homes import JobHome
from agentcache.server import snapshot_reader
from agentcache.server.change_text import Decode, write_all, write_latest
from agentcache.server.session_router import SessionRouter
from agentcache.server.snapshot_reader import ANSWER_WAIT_S, Reading
from agentcache.tenants import Tenants as Shares

logger = init_logger("vllm.agentcache")

# Listed at most, of each engine, and with all turns so many at a time: an engine takes no step while it answers.
MAX_JOBS = 500
_JOBS_AT_ONCE = 32
# A session is idle for an hour before; a minute more changes nothing.
POLL_S = 60.0

# Cache salts, None that of requests without one. None in place of the list stands for all tenants.
Tenants = list[str | None] | None


class EngineJob(JobView):
    """`engine` is the data-parallel rank of the engine that has the job."""

    engine: int


class JobReader:
    """Asks engines about jobs. Methods raise ServerError when an engine fails or does not answer in time."""

    def __init__(
        self,
        call: Callable[..., Awaitable[Sequence[Any]]],
        placer: Placer | None = None,
        router: SessionRouter | None = None,
        decode: Decode | None = None,
        *,
        shares: Shares | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask through `call`, which takes a method of the engine core and its arguments; one answer per engine.

        `placer` is what chooses engines, where there are several; `router` hears of sessions that are over; `decode`
        makes text of token ids, where engines tell any; `shares` say who is a tenant, where tenants have any.
        """
        self._call = call
        self._placer = placer
        self._router = router
        self._decode = decode
        self.shares = shares
        self._clock = clock
        self._latest: asyncio.Task[list[list[dict[str, Any]]]] | None = None
        self._next_ask_s = 0.0

    def follow(self, placer: Placer | None, shares: Shares | None) -> None:
        """Go on with another placer, or with vLLM's balancer, and with other shares."""
        self._placer, self.shares = placer, shares

    async def find(self, reading: Reading, session: str, tenants: Tenants = None) -> list[dict[str, Any]]:
        """Return the session's jobs, each an EngineJob as plain values; empty if no engine knows any.

        `reading` says which engines there are.
        """
        jobs = _number(reading, await self._ask(JOB_METHOD, session, tenants))
        write_all(jobs, self._decode)
        return jobs

    async def list_latest(self, reading: Reading, limit: int) -> list[dict[str, Any]]:
        """Return each engine's most recently active jobs with their last turns, up to `limit` of each.

        The answer is shared for a quarter of a second by all who ask; not to be changed.
        """
        if self._latest is None or (self._latest.done() and self._clock() >= self._next_ask_s):
            self._next_ask_s = self._clock() + snapshot_reader.MIN_INTERVAL_S
            self._latest = asyncio.create_task(self._ask_latest(reading))
        # One who leaves does not take the answer with him.
        jobs = await asyncio.shield(self._latest)
        return [job for engine in jobs for job in engine[:limit]]

    async def list_whole(self, reading: Reading) -> list[dict[str, Any]]:
        """Return each engine's most recently active jobs with all turns, up to 500; only latest changes have text.

        They are asked for a few at a time: jobs that are active in between may be missing.
        """
        found: dict[tuple[Any, ...], dict[str, Any]] = {}
        for first in range(0, MAX_JOBS, _JOBS_AT_ONCE):
            asked = min(_JOBS_AT_ONCE, MAX_JOBS - first)
            part = _number(reading, await self._ask(JOBS_METHOD, first, asked, MAX_TURNS))
            found |= {(job["engine"], job["session"], job["arrived_s"]): job for job in part}
            if len(part) < asked:
                break
        jobs = sorted(found.values(), key=lambda job: job["engine"])
        write_latest(jobs, self._decode)
        return jobs

    async def release(self, session: str, tenants: Tenants = None) -> list[dict[str, Any]] | None:
        """End the session's jobs, or that of the reply which has `session` as its id, and release their pins.

        The router is told the session's name, and nothing of a job without one.

        Returns:
            The summaries of those that are over now, as one with requests is only after them; None if no engine knows
            any job.
        """
        if self._placer is not None:
            self._placer.end_session(session, tenants)
        # What no engine knows may be a session that they have forgotten.
        over: Sequence[str | None] = [session]
        try:
            answers = await self._gather(RELEASE_METHOD, session, tenants)
            released = list(chain.from_iterable(answer["sessions"] for answer in answers))
            over = released or over
        finally:
            self._tell_router(over)
        return [job for answer in answers for job in answer["ended"]] if released else None

    async def tell_expired(self) -> None:
        """Tell the router which sessions engines have forgotten since the last call, idle for too long."""
        while over := list(chain.from_iterable(await self._gather(EXPIRED_METHOD))):
            self._tell_router(over)

    async def _ask_latest(self, reading: Reading) -> list[list[dict[str, Any]]]:
        jobs = _number(reading, await self._ask(JOBS_METHOD, 0, MAX_JOBS, 1))
        write_latest(jobs, self._decode)
        return [list(of_engine) for _, of_engine in groupby(jobs, key=lambda job: job["engine"])]

    def find_home(self, session: str, tenants: Tenants = None) -> JobHome | None:
        """Find the engine to which the session's next turn will go; None where nothing chooses one."""
        return None if self._placer is None else self._placer.find(session, tenants)

    def _tell_router(self, over: Iterable[str | None]) -> None:
        if self._router is not None:
            for session in dict.fromkeys(over):
                if session is not None:
                    self._router.finish(session)

    async def _gather(self, method: str, *args: Any) -> list[Any]:
        """Ask every engine whose policy follows jobs."""
        return [answer for answer in await self._ask(method, *args) if answer is not None]

    async def _ask(self, method: str, *args: Any) -> Sequence[Any]:
        try:
            return await asyncio.wait_for(self._call(method, *args), ANSWER_WAIT_S)
        except TimeoutError:
            raise ServerError(f"The engine did not answer within {ANSWER_WAIT_S:g} s; try again.") from None
        except Exception as error:
            # vLLM raises a bare Exception for any failure in the engine. Its text goes into the log only.
            logger.warning("The engine could not answer %s: %s", method, in_one_line(error))
            raise ServerError("The engine could not answer; its log says why.") from None


def _number(reading: Reading, answers: Sequence[Sequence[dict[str, Any]] | None]) -> list[dict[str, Any]]:
    ranks = [engine.engine for engine in reading.engines if engine.runtime is not None]
    told = [answer for answer in answers if answer is not None]
    if len(ranks) != len(told):
        raise ServerError("The number of engines has changed; try again.")
    return [{"engine": rank, **job} for rank, jobs in zip(ranks, told, strict=True) for job in jobs]


async def watch_expiry(jobs: JobReader, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Tell the router once a minute, until cancelled, which sessions were idle for too long.

    An engine that has nothing to do takes no steps, and tells nothing itself.
    """
    while True:
        await sleep(POLL_S)
        try:
            await jobs.tell_expired()
        except ServerError as error:
            # What the engine tells too late is not told: the router forgets it by itself.
            logger.warning("agentcache: the router was not told which sessions were idle for too long: %s", error)
