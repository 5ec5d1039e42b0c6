"""Tells a scheduler's parts what happens, and asks those that decide.

A part overrides the hooks that it needs; `Hooks` calls those alone. A part that only explains is an observer: an error
in it turns it off, and the engine serves on. Nothing that the engine decides follows from it. `observe/` has them.

What pins, order, eviction, copies and placement need is no observer: the tracker's books, its finder and prefixes, the
job table, learnt durations. An error there must be seen, not served with.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from agentcache.engine.vllm.base import init_logger
from agentcache.engine.vllm.types import EngineCoreOutputs, KVCacheBlock, Request
from agentcache.engine.waits import WaitReason

if TYPE_CHECKING:
    from agentcache.engine.segments.cached_blocks import CachedBlockMap


class Part:
    """Hears of a scheduler's requests; fill requests, of which no client knows, are none of them."""

    def arrived(self, request: Request) -> None:
        """Note a request that has come and generates text."""

    def step(self) -> None:
        """Note that a step is scheduled next."""

    def find_wait(self, request: Request, available: int) -> WaitReason | None:
        """Find why a queued request may not run in this step; None if this part does not hold it.

        `available` blocks are free, or the request's already because a KV connector has loaded them.
        """

    def awaits_blocks(self, request: Request, on_gpu: CachedBlockMap) -> bool:  # noqa: ARG002
        """Tell whether the request must wait for blocks that are on their way, by what the GPU has."""
        return False

    def note_wait(self, request: Request, reason: WaitReason) -> None:
        """Note what holds a queued request that this step has looked at."""

    def make_room(self, request: Request, *, is_alone: bool) -> bool:  # noqa: ARG002
        """Free blocks for a request that finds none; `is_alone`: nothing runs. Return whether any were freed."""
        return False

    def choose_victim(self, request: Request, running: list[Request]) -> None:
        """Put the request to preempt last in the batch: `request` still finds no blocks."""

    def evicted(self, blocks: Sequence[KVCacheBlock], request_id: str) -> None:
        """Note blocks that are evicted for the client's request of this id, and still have their hashes."""

    def admitted(self, request: Request, hit_tokens: int, filled: Collection[int]) -> None:
        """Note a request that holds its blocks and runs, again perhaps after a preemption.

        It begins behind `hit_tokens`. `filled` are its blocks, by index, that fill requests have computed for it.
        """

    def stepped(self, outputs: Mapping[int, EngineCoreOutputs]) -> None:
        """Note what a step gives to each client."""

    def ended(self, request: Request) -> None:
        """Note that a request is over."""

    def can_reset(self) -> bool:
        """Tell whether the prefix cache may be reset now."""
        return True

    def reset(self) -> None:
        """Forget what was cached: the prefix cache was reset."""

    def close(self) -> None:
        """Save what is to outlive the engine, which stops."""

    def abandon(self) -> None:
        """Let go of what is held: a hook of this observer has failed, and no other will be called."""

    def count_held(self) -> Counter[int]:
        """Count how often each block is held here, by its id."""
        return Counter()

    def check_integrity(self) -> None:
        """Raise IntegrityError when the part contradicts itself."""


class Hooks:
    """Of each hook the methods of the parts that override it, in the order of the parts."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts = tuple(parts)
        self.arrived = tuple(each.arrived for each in self.parts if _overrides(each, "arrived"))
        self.step = tuple(each.step for each in self.parts if _overrides(each, "step"))
        self.find_wait = tuple(each.find_wait for each in self.parts if _overrides(each, "find_wait"))
        self.awaits_blocks = tuple(each.awaits_blocks for each in self.parts if _overrides(each, "awaits_blocks"))
        self.note_wait = tuple(each.note_wait for each in self.parts if _overrides(each, "note_wait"))
        self.make_room = tuple(each.make_room for each in self.parts if _overrides(each, "make_room"))
        self.choose_victim = tuple(each.choose_victim for each in self.parts if _overrides(each, "choose_victim"))
        self.evicted = tuple(each.evicted for each in self.parts if _overrides(each, "evicted"))
        self.admitted = tuple(each.admitted for each in self.parts if _overrides(each, "admitted"))
        self.stepped = tuple(each.stepped for each in self.parts if _overrides(each, "stepped"))
        self.ended = tuple(each.ended for each in self.parts if _overrides(each, "ended"))


def _overrides(part: Part, hook: str) -> bool:
    return getattr(type(part), hook) is not getattr(Part, hook)


def request_ids(outputs: Mapping[int, EngineCoreOutputs]) -> Iterator[str]:
    """Yield the requests that a step gives something to."""
    return (output.request_id for client in outputs.values() for output in client.outputs)


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
