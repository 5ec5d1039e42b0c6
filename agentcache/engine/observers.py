"""What only explains is kept from ending the engine: an error in it turns it off, and the engine serves on.

An observer is told what the engine does, and answers who asks. Nothing that the engine decides follows from it:

- `misses` (`jobs/miss_log.py`), with `losses` of two caches (`tier/losses.py`): why a prompt was not cached. They also
  count for the price of a return, which keeps what it has learnt if they fail.
- `prompt_changes` (`jobs/prompt_change.py`), with `change_text` (`jobs/turn_tokens.py`): what a client has changed. If
  it fails, prompts are expected to repeat replies, as those of a new client.
- `hit_places` (`jobs/hit_places.py`): which cache supplied hits.
- `job_stats` (`jobs/stats.py`): turns, counts and views of jobs.
- `fetch_waits` (`tier/waits.py`): how long requests wait for fetches.
- `lru_comparison` (`blocks/lru_comparison.py`): what a shadow LRU would have hit.
- `recording` (`record/`): lines of a recording, and the thread that writes them.
- `snapshot` (`rpc/snapshot.py`): what is read for metrics.

What pins, order, eviction, copies and placement need is no observer: the tracker's books, its finder and prefixes, the
job table, learnt durations. An error there must be seen, not served with.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from agentcache.engine.vllm.base import init_logger

logger = init_logger("vllm.agentcache")

# Tests set this variable, also for the engines that they start: an observer's error then ends the engine, and the test.
RAISE = "AGENTCACHE_OBSERVERS_RAISE"

P = ParamSpec("P")
R = TypeVar("R")


class Observers:
    """The observers of one scheduler. `failures` counts those that were turned off, by name: 0 or 1."""

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}

    def guard(self, name: str, end: Callable[[], object] = lambda: None) -> Guard:
        """Make the guard of an observer. `end` drops what the observer knows; it is called when it is turned off."""
        self.failures[name] = 0
        return Guard(name, self.failures, end)


class Guard:
    """Stands at the calls of one observer, which it makes until one of them fails."""

    def __init__(self, name: str, failures: dict[str, int], end: Callable[[], object]) -> None:
        self._name = name
        self._failures = failures
        self._end = end
        self._is_on = True

    def tell(self, observe: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call `observe`, unless the observer is off."""
        self.ask(None, observe, *args, **kwargs)

    def ask(self, otherwise: R, view: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return what `view` returns; `otherwise` if it fails or the observer is off."""
        if self._is_on:
            try:
                return view(*args, **kwargs)
            except Exception as error:
                if os.environ.get(RAISE):
                    raise
                self._turn_off(error)
        return otherwise

    def _turn_off(self, error: Exception) -> None:
        self._is_on = False
        self._failures[self._name] += 1
        logger.error(
            "agentcache's %s failed, and is off until the server starts again. It only explains: requests are served "
            "as before. Please report this.",
            self._name,
            exc_info=error,
        )
        try:
            self._end()
        except Exception:
            logger.exception("What agentcache's %s had kept is kept on.", self._name)
