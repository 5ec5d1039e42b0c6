"""Keeps Python's garbage collector from looking at all that is kept of jobs every time, which takes 0.2 s of a step."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from functools import cache
from multiprocessing import parent_process

# Collections of the middle generation before a full one. By default 10, after which there are 70,000 objects to look
# at, in 60 ms.
_BETWEEN_FULL = 3
# So often all objects are looked at: of what was spared some may have become garbage in cycles since.
_LOOK_AT_ALL_S = 600.0


class SpareSurvivors:
    """Has the collector look at what survives a full collection no more, until ten minutes later. Goes by `clock`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_s = clock()

    def begin(self) -> None:
        """Begin with all that there is."""
        # What is frozen counts as nothing in the next collection, which decides when the one behind it is due.
        gc.collect()
        gc.freeze()
        gc.collect()
        gc.set_threshold(*gc.get_threshold()[:2], _BETWEEN_FULL)
        gc.callbacks.append(self._note)

    def _note(self, phase: str, info: Mapping[str, int]) -> None:
        if info["generation"] < 2:
            return
        if phase == "stop":
            gc.freeze()
        elif self._clock() - self._looked_s >= _LOOK_AT_ALL_S:
            self._looked_s = self._clock()
            gc.unfreeze()


@cache
def spare_core() -> None:
    """Spare what survives in this process if it is an engine core's own, and no client's. Later calls do nothing."""
    if parent_process() is not None:
        SpareSurvivors().begin()
