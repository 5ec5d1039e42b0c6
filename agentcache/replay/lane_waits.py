"""Shortens the waits of a closed loop's lanes where all lanes wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from tool_runtime.agent.recorded_tools import Sleep


@dataclass(slots=True, eq=False)
class _Wait:
    session: str
    due_s: float
    moved: asyncio.Event = field(default_factory=asyncio.Event)


class LaneWaits:
    """Waits that are brought forward alike while no lane has a request under way, so that one ends within `most_s`."""

    def __init__(self, lanes: int, clock: Callable[[], float], most_s: float) -> None:
        self._lanes = lanes
        self._clock = clock
        self._most_s = most_s
        self._waits: list[_Wait] = []

    def of(self, session: str) -> Sleep:
        """Return the way to wait for so many seconds of a lane that has this session now."""
        return partial(self._wait, session)

    def count(self, more: int) -> None:
        """Count on so many more lanes, or on fewer: one takes no other session, or an agent of it waits for others."""
        self._lanes += more
        self._bring_forward()

    async def _wait(self, session: str, seconds: float) -> None:
        wait = _Wait(session, self._clock() + seconds)
        self._waits.append(wait)
        self._bring_forward()
        try:
            while (left_s := wait.due_s - self._clock()) > 0:
                wait.moved.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(wait.moved.wait(), left_s)
        finally:
            self._waits.remove(wait)
            # Other tools of the same turn may go on.
            self._bring_forward()

    def _bring_forward(self) -> None:
        if not self._waits or len({wait.session for wait in self._waits}) < self._lanes:
            return
        excess_s = min(wait.due_s for wait in self._waits) - self._clock() - self._most_s
        if excess_s > 0:
            for wait in self._waits:
                wait.due_s -= excess_s
                wait.moved.set()
