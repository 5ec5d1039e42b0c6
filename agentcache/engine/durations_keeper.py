"""Keeps what was learned of tool durations in a file, over restarts, without holding up the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread

from vllm.logger import init_logger

from tool_runtime.durations import Durations
from tool_runtime.durations_file import load_durations, save_durations

logger = init_logger("vllm.agentcache")

SAVE_EVERY_S = 60.0
# A disk that takes longer does not hold up the end of the server.
_LAST_SAVE_S = 10.0


class DurationsKeeper:
    """Adds the file's records to `durations` at once. Called on the engine's thread; only writing is on another.

    An idle engine takes no steps: what came within the last minute before it is saved when it goes on or closes.
    """

    def __init__(self, path: Path, durations: Durations, clock: Callable[[], float]) -> None:
        """`clock` gives seconds. A file that is damaged or cannot be read is a line in the log."""
        self._path = path
        self._durations = durations
        self._clock = clock
        self._saved_s = clock()
        self._saved = durations.observed
        self._writer: Thread | None = None
        self._reported: str | None = None
        states, problem = load_durations(path)
        durations.restore(states, clock())
        self._report(problem)

    def step(self) -> None:
        """Once a minute a save begins, if there is something new and the last one is over. O(1) otherwise."""
        elapsed_s = self._clock() - self._saved_s
        # A clock that was put back would stop it for as long.
        if 0 <= elapsed_s < SAVE_EVERY_S or self._is_writing():
            return
        self._saved_s = self._clock()
        if self._durations.observed != self._saved:
            self._begin_save()

    def close(self) -> None:
        """Save what is new."""
        self._await_writer()
        if self._durations.observed != self._saved and not self._is_writing():
            self._begin_save()
            self._await_writer()
        if self._is_writing():
            self._report(f"{self._path}: tool durations were not saved: the disk takes too long")

    def _begin_save(self) -> None:
        self._saved = self._durations.observed
        self._writer = Thread(
            target=self._write, args=(self._durations.copy(),), name="agentcache-durations", daemon=True
        )
        self._writer.start()

    def _write(self, durations: Durations) -> None:
        self._report(save_durations(durations.dump(), self._path))

    def _is_writing(self) -> bool:
        return self._writer is not None and self._writer.is_alive()

    def _await_writer(self) -> None:
        if self._writer is not None:
            self._writer.join(_LAST_SAVE_S)

    def _report(self, problem: str | None) -> None:
        """Not the same every minute."""
        if problem is not None and problem != self._reported:
            logger.warning("%s", problem)
        self._reported = problem
