"""The hooks by which a scheduler tells its parts what happens, and asks those that decide.

A part overrides the hooks that it needs; `Hooks` calls those alone. Parts that only explain are observers
(`observers.py`): an error in one of them ends no engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

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
