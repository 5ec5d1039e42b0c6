"""Keeps what was learned of tool durations in a file, over restarts, without holding up the engine.

Data-parallel engines have a file each, and read those of the others: what one has learned counts for all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

from tool_runtime.learning.durations import Durations
from tool_runtime.learning.durations_file import find_siblings, load_durations, read_siblings, save_durations

# It saves while an engine serves, whose log this is.
logger = logging.getLogger("vllm.agentcache")

# A server that is killed loses what came within that time. Writing long records takes a second; a hundredth of the
# time is for that.
LEAST_PAUSE_S = 2.0
PAUSE_PER_SAVE = 100.0
# A disk that takes longer does not hold up the end of the server.
_LAST_SAVE_S = 5.0


class DurationStore:
    """Adds the file's records to `durations` at once, and those of the other engines' files.

    From the first step on it saves what is new, and reads what the others have saved. A thread does: an idle engine
    takes no steps, and one that is killed has no time left.
    """

    def __init__(self, path: Path, durations: Durations, clock: Callable[[], float]) -> None:
        """Load the file. `clock` gives seconds, those of `durations`. A damaged file is a line in the log.

        Raises ForeignFileError for a file of anything else.
        """
        self._path = path
        self._durations = durations
        self._saved = durations.observed
        self._saver: Thread | None = None
        self._clock = clock
        self._closing = Event()
        self._read: dict[Path, int] = {}
        self._reported: str | None = None
        states, problem = load_durations(path)
        durations.restore(states, clock())
        self._report(problem)
        self._share_siblings()

    def step(self) -> None:
        """Save from now on, as the engine works, also after a close. O(1)."""
        if self._saver is None or not self._saver.is_alive():
            self._closing.clear()
            self._saver = Thread(target=self._save_until_closed, name="agentcache-durations", daemon=True)
            self._saver.start()

    def close(self) -> None:
        """Save what is new, and no more until the next step. May be called again."""
        self.step()
        assert self._saver is not None
        self._closing.set()
        self._saver.join(_LAST_SAVE_S)
        if self._saver.is_alive():
            self._report(f"{self._path}: tool durations were not saved: the disk takes too long")

    def _save_until_closed(self) -> None:
        pause_s = LEAST_PAUSE_S
        while not self._closing.wait(pause_s):
            began_s = time.monotonic()
            self._save_new()
            self._share_siblings()
            pause_s = max(LEAST_PAUSE_S, PAUSE_PER_SAVE * (time.monotonic() - began_s))
        self._save_new()

    def _save_new(self) -> None:
        if self._durations.observed == self._saved:
            return
        known = self._durations.copy()
        self._saved = known.observed
        self._report(save_durations(known.dump(), self._path))

    def _share_siblings(self) -> None:
        """Read the other engines' files if any has changed."""
        present = {path: stamp for path in find_siblings(self._path) if (stamp := _find_stamp(path)) is not None}
        if present != self._read:
            self._read = present
            self._durations.share(read_siblings(self._path), self._clock())

    def _report(self, problem: str | None) -> None:
        """Report a failure, but not the same each time."""
        if problem is not None and problem != self._reported:
            logger.warning("%s", problem)
        self._reported = problem


def _find_stamp(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
