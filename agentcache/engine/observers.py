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
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ParamSpec, TypeVar

from agentcache.engine.parts import Part
from agentcache.engine.vllm.base import init_logger
from agentcache.engine.vllm.types import EngineCoreOutputs, KVCacheBlock, Request

logger = init_logger("vllm.agentcache")

# Tests set this variable, also for the engines that they start: an observer's error then ends the engine, and the test.
RAISE = "AGENTCACHE_OBSERVERS_RAISE"

P = ParamSpec("P")
R = TypeVar("R")
O = TypeVar("O", bound=Part)  # noqa: E741


class Observers(Part):
    """The observers of one scheduler. `failures` counts those that were turned off, by name: 0 or 1."""

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}
        self._watching: tuple[tuple[Guard, Part], ...] = ()

    def watch(self, name: str, observer: Part) -> None:
        """Call the observer's hooks from now on, until one of them fails."""

        def end() -> None:
            self.drop(observer)
            observer.abandon()

        self._watching += ((self.guard(name, end), observer),)

    def drop(self, observer: Part) -> None:
        """Call no hook of the observer any more."""
        self._watching = tuple(pair for pair in self._watching if pair[1] is not observer)

    def find(self, kind: type[O]) -> O | None:
        """Find the observer of that class which still watches."""
        return next((observer for _, observer in self._watching if isinstance(observer, kind)), None)

    def arrived(self, request: Request) -> None:
        """Tell all that a request has come."""
        for guard, observer in self._watching:
            guard.tell(observer.arrived, request)

    def admitted(self, request: Request, hit_tokens: int, filled: Collection[int]) -> None:
        """Tell all that a client's request runs."""
        for guard, observer in self._watching:
            guard.tell(observer.admitted, request, hit_tokens, filled)

    def evicted(self, blocks: Sequence[KVCacheBlock], request_id: str) -> None:
        """Tell all which blocks are evicted, and for which client's request."""
        for guard, observer in self._watching:
            guard.tell(observer.evicted, blocks, request_id)

    def stepped(self, outputs: Mapping[int, EngineCoreOutputs]) -> None:
        """Tell all what a step gives to each client."""
        for guard, observer in self._watching:
            guard.tell(observer.stepped, outputs)

    def ended(self, request: Request) -> None:
        """Tell all that a request is over."""
        for guard, observer in self._watching:
            guard.tell(observer.ended, request)

    def reset(self) -> None:
        """Tell all that the prefix cache was reset."""
        for guard, observer in self._watching:
            guard.tell(observer.reset)

    def close(self) -> None:
        """Tell all that the engine stops."""
        for guard, observer in self._watching:
            guard.tell(observer.close)

    def check_integrity(self) -> None:
        """Raise IntegrityError when one contradicts itself."""
        for _, observer in self._watching:
            observer.check_integrity()

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
