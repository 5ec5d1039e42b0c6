"""Does in a thread what the engine must not wait for. What a disk or a collector does not take is lost, and counted."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from threading import Event, Thread
from typing import Generic, TypeVar

logger = logging.getLogger("vllm.agentcache")

# What the thread is behind; more is lost.
_MOST_WAITING = 4096
# What takes longer does not hold up the end of the server.
_LAST_S = 5.0

Item = TypeVar("Item")


class Outbox(Generic[Item]):
    """Sends items in their order, up to `most` at once, after waiting `gather_s` for more. `lost` did not arrive."""

    def __init__(
        self, name: str, send: Callable[[list[Item]], None], warning: str, *, most: int = 1, gather_s: float = 0.0
    ) -> None:
        """Begin. What `send` raises, and what it did not take, the log tells once, behind `warning`."""
        self.lost = 0
        self._send = send
        self._warning = warning
        self._most = most
        self._gather_s = gather_s
        self._items: deque[Item] = deque()
        self._goes_on = Event()
        self._closing = Event()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, item: Item) -> None:
        """Have the item sent soon. Never waits, and never fails."""
        if len(self._items) >= _MOST_WAITING:
            self._lose(1, "more waits than is kept: what takes it is too slow")
            return
        self._items.append(item)
        self._goes_on.set()

    def close(self) -> None:
        """Send what waits, within seconds. What comes later is not sent."""
        self._closing.set()
        self._goes_on.set()
        self._thread.join(_LAST_S)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._goes_on.wait()
            self._goes_on.clear()
            self._closing.wait(self._gather_s)
            is_last = self._closing.is_set()
            while self._items:
                batch = [self._items.popleft() for _ in range(min(self._most, len(self._items)))]
                try:
                    self._send(batch)
                except Exception as error:
                    self._lose(len(batch), error)

    def _lose(self, items: int, cause: object) -> None:
        if not self.lost:
            logger.warning("%s: %s", self._warning, cause)
        self.lost += items
