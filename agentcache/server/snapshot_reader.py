"""Reads the engines' counts, for every route that shows them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentcache.engine.rpc.snapshot import EngineSnapshot
from agentcache.engine.vllm.base import init_logger
from agentcache.errors import in_one_line

logger = init_logger("vllm.agentcache")

# An engine answers between two steps, and a step with a long prompt takes seconds. Prometheus waits 10 s by default.
ANSWER_WAIT_S = 5.0
# Ask the engines no more often than this, however often we are asked: /metrics is open to all.
MIN_INTERVAL_S = 0.25


@dataclass(frozen=True, slots=True)
class Reading:
    """The snapshots of all engines at one time; empty if another scheduler runs."""

    engines: tuple[EngineSnapshot, ...]
    age_s: float


class SnapshotReader:
    """Keeps the latest answer for when the engines do not answer. For one event loop."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[Sequence[dict[str, Any] | None]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read through `ask`, which returns one snapshot per engine; None for an engine with another scheduler."""
        self._ask = ask
        self._clock = clock
        self._lock = asyncio.Lock()
        self._next_try_s = clock()
        self._latest: tuple[tuple[EngineSnapshot, ...], float] | None = None

    async def read(self) -> Reading | None:
        """Return the present counts, or the last known if engines do not answer; None before their first answer."""
        async with self._lock:
            if self._clock() >= self._next_try_s:
                await self._update()
                self._next_try_s = self._clock() + MIN_INTERVAL_S
        if self._latest is None:
            return None
        engines, taken_s = self._latest
        return Reading(engines, self._clock() - taken_s)

    def forget(self) -> None:
        """Drop the last answer: the engines have started counting anew."""
        self._latest, self._next_try_s = None, self._clock()

    async def _update(self) -> None:
        try:
            answers = await asyncio.wait_for(self._ask(), ANSWER_WAIT_S)
        except TimeoutError:
            logger.warning("The engine did not tell its counts within %s s.", ANSWER_WAIT_S)
        except Exception as error:
            # vLLM raises a bare Exception for any failure in the engine; scrapes continue with vLLM's own counts.
            logger.warning("The engine could not tell its counts: %s", in_one_line(error))
        else:
            engines = tuple(EngineSnapshot.model_validate(answer) for answer in answers if answer is not None)
            self._latest = engines, self._clock()
