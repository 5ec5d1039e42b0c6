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
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from agentcache.engine.constants import ANSWER_MARK
from agentcache.engine.vllm.base import init_logger
from agentcache.engine.vllm.types import EngineCoreOutputs, KVCacheBlock, Request
from agentcache.engine.waits import WaitReason

if TYPE_CHECKING:
    from agentcache.engine.cached_blocks import CachedBlockMap


class Part:
    """Hears of a scheduler's requests; fill requests, of which no client knows, are none of them."""

    def arrived(self, request: Request) -> None:
        """Note a request that has come and generates text."""

    def step(self) -> None:
        """Note that a step is scheduled next."""

    def limit_prefill(self, tokens: int, decodes: int, requests: int) -> int:  # noqa: ARG002
        """Limit the prompt tokens of a step in which so many of all requests decode. Return `tokens`, or 0 for none."""
        return tokens

    def find_wait(self, request: Request, available: int) -> WaitReason | None:
        """Find why a queued request may not run in this step; None if this part does not hold it.

        `available` blocks are free, or the request's already because a KV connector has loaded them.
        """

    def awaits_blocks(self, request: Request, on_gpu: CachedBlockMap) -> bool:  # noqa: ARG002
        """Tell whether the request must wait for blocks that are on their way, by what the GPU has."""
        return False

    def count_elsewhere(self, request: Request) -> int:  # noqa: ARG002
        """Count the request's blocks that are in another cache than the GPU's, from which they can be brought."""
        return 0

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

    def find_own(self, hook: str) -> Iterator[Callable[..., Any]]:
        """Yield the part's method of that name if it overrides the hook."""
        if getattr(type(self), hook) is not getattr(Part, hook):
            yield getattr(self, hook)


P = ParamSpec("P")
R = TypeVar("R")
O = TypeVar("O", bound=Part)  # noqa: E741


class Hooks:
    """Of each hook the methods of the parts that override it, in the order of the parts."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts = tuple(parts)
        self.arrived = self._find(Part.arrived)
        self.step = self._find(Part.step)
        self.limit_prefill = self._find(Part.limit_prefill)
        self.find_wait = self._find(Part.find_wait)
        self.awaits_blocks = self._find(Part.awaits_blocks)
        self.count_elsewhere = self._find(Part.count_elsewhere)
        self.note_wait = self._find(Part.note_wait)
        self.make_room = self._find(Part.make_room)
        self.choose_victim = self._find(Part.choose_victim)
        self.evicted = self._find(Part.evicted)
        self.admitted = self._find(Part.admitted)
        self.stepped = self._find(Part.stepped)
        self.ended = self._find(Part.ended)
        self.reset = self._find(Part.reset)
        self.close = self._find(Part.close)

    def _find(self, hook: Callable[Concatenate[Part, P], R]) -> tuple[Callable[P, R], ...]:
        return tuple(own for part in self.parts for own in part.find_own(hook.__name__))


def request_ids(outputs: Mapping[int, EngineCoreOutputs]) -> Iterator[str]:
    """Yield the requests that a step gives something to."""
    return (output.request_id for client in outputs.values() for output in client.outputs)


def mark_answers(outputs: Mapping[int, EngineCoreOutputs], answered: Collection[str]) -> None:
    """Tell clients which of the requests that a step ends were answered. Data-parallel ones alone get those."""
    for each in outputs.values():
        if each.finished_requests:
            each.finished_requests |= {name + ANSWER_MARK for name in each.finished_requests.intersection(answered)}


logger = init_logger("vllm.agentcache")

# Tests set this variable, also for the engines that they start: an observer's error then ends the engine, and the test.
RAISE = "AGENTCACHE_OBSERVERS_RAISE"


class Observers(Part):
    """The observers of one scheduler. `failures` counts those that were turned off, by name: 0 or 1."""

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}
        self._watching: dict[Part, Guard] = {}

    def watch(self, name: str, observer: Part) -> None:
        """Call the observer's hooks, until one of them fails."""
        self._watching[observer] = self.guard(name, observer.abandon)

    def drop(self, observer: Part) -> None:
        """Call no hook of the observer any more."""
        self._watching[observer].is_on = False

    def find(self, kind: type[O]) -> O | None:
        """Find the observer of that class which still watches."""
        return next((each for each, guard in self._watching.items() if guard.is_on and isinstance(each, kind)), None)

    def find_own(self, hook: str) -> Iterator[Callable[..., Any]]:
        """Yield the methods of the observers, as their guards call them."""
        for observer, guard in self._watching.items():
            yield from (partial(guard.tell, own) for own in observer.find_own(hook))

    def check_integrity(self) -> None:
        """Raise IntegrityError when one contradicts itself."""
        for observer, guard in self._watching.items():
            if guard.is_on:
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
        self.is_on = True

    def tell(self, observe: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call `observe`, unless the observer is off."""
        self.ask(None, observe, *args, **kwargs)

    def ask(self, otherwise: R, view: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return what `view` returns; `otherwise` if it fails or the observer is off."""
        if self.is_on:
            try:
                return view(*args, **kwargs)
            except Exception as error:
                if os.environ.get(RAISE):
                    raise
                self._turn_off(error)
        return otherwise

    def _turn_off(self, error: Exception) -> None:
        self.is_on = False
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
