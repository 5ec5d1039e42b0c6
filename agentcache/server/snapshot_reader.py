"""Asks the engines what they count, on behalf of every route that shows it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.logger import init_logger

from agentcache.engine.snapshot import EngineSnapshot
from agentcache.errors import in_one_line

logger = init_logger("vllm.agentcache")

# An engine answers between two steps, and a step with a long prompt takes seconds. A scrape waits for 10 s by default.
ANSWER_WAIT_S = 5.0
# How often the engines are asked at most, however often anybody asks us: /metrics is open to all.
MIN_INTERVAL_S = 0.25


@dataclass(frozen=True, slots=True)
class Reading:
    """All engines' snapshots at one time; none where another scheduler runs."""

    engines: tuple[EngineSnapshot, ...]
    age_s: float


class SnapshotReader:
    """Keeps the latest answer for when the engines give none. For one event loop."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[Sequence[dict[str, Any] | None]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ask` gives one snapshot per engine; None is an engine that has another scheduler than ours."""
        self._ask = ask
        self._clock = clock
        self._lock = asyncio.Lock()
        self._next_try_s = clock()
        self._latest: tuple[tuple[EngineSnapshot, ...], float] | None = None

    async def read(self) -> Reading | None:
        """The present counts, or, of engines that do not answer, the last known; None before their first answer."""
        async with self._lock:
            if self._clock() >= self._next_try_s:
                await self._update()
                self._next_try_s = self._clock() + MIN_INTERVAL_S
        if self._latest is None:
            return None
        engines, taken_s = self._latest
        return Reading(engines, self._clock() - taken_s)

    def forget(self) -> None:
        """The engines count anew: what they told before is no answer any more."""
        self._latest, self._next_try_s = None, self._clock()

    async def _update(self) -> None:
        try:
            answers = await asyncio.wait_for(self._ask(), ANSWER_WAIT_S)
        except TimeoutError:
            logger.warning("The engine did not tell its counts within %s s.", ANSWER_WAIT_S)
        except Exception as error:
            # vLLM raises a bare Exception for what failed in the engine; scrapes go on with what vLLM itself counts.
            logger.warning("The engine could not tell its counts: %s", in_one_line(error))
        else:
            engines = tuple(EngineSnapshot.model_validate(answer) for answer in answers if answer is not None)
            self._latest = engines, self._clock()
