"""Brings an API server back to the placement that it has lost: by tries that no request waits for."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from threading import Thread

from agentcache.errors import ServerError

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


def _run_in_thread(work: Callable[[], None]) -> None:
    Thread(target=work, name="agentcache-placement", daemon=True).start()


class Rejoining:
    """`join` connects anew, for as long as it takes, or raises ServerError. `run` has a try run beside the caller.

    A try comes one second after a loss, and each further one after twice the time, up to a minute: so also where each
    new connection is lost at once. One that has lasted for a minute begins the count anew.
    """

    def __init__(
        self,
        join: Callable[[], Connection],
        *,
        clock: Callable[[], float] = time.monotonic,
        run: Callable[[Callable[[], None]], None] = _run_in_thread,
    ) -> None:
        self._join = join
        self._clock = clock
        self._run = run
        self._is_trying = False
        self._found: Connection | None = None
        self._pause_s = FIRST_PAUSE_S
        self._joined_s = self._next_s = clock()

    def note_loss(self) -> None:
        """Note that the connection is lost."""
        if self._clock() - self._joined_s >= LONGEST_PAUSE_S:
            self._pause_s = FIRST_PAUSE_S
        self._wait()

    def take(self) -> Connection | None:
        """Return the new connection once there is one, else None; begin a try if one is due. Never waits."""
        # First: what a try finds is there before it ends.
        if self._is_trying:
            return None
        found, self._found = self._found, None
        if found is not None:
            self._joined_s = self._clock()
        elif self._clock() >= self._next_s:
            self._is_trying = True
            self._run(self._try)
        return found

    def _try(self) -> None:
        try:
            self._found = self._join()
        except ServerError:
            self._wait()
        finally:
            self._is_trying = False

    def _wait(self) -> None:
        self._next_s = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
