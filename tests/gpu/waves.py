"""Pairs of engines start together as long as a GPU has room for them; the next ones when these are done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack

from engine_pair import Starting

Start = Callable[[str], AbstractContextManager[Starting]]


def plan_waves(sizes: Mapping[str, float], room: float) -> list[list[str]]:
    """Split into runs that fit into the room, in order; what does not fit by itself is alone."""
    waves: list[list[str]] = []
    left = 0.0
    for name, size in sizes.items():
        if not waves or size > left:
            waves.append([])
            left = room
        waves[-1].append(name)
        left -= size
    return waves


class Waves(AbstractContextManager["Waves"]):
    """`start` is asked for each pair of a wave when the first of them is wanted."""

    def __init__(self, waves: Sequence[Sequence[str]], start: Start) -> None:
        self._waves = waves
        self._start = start
        self._stack = ExitStack()
        self._started: dict[str, Starting] = {}

    def get(self, name: str) -> Starting:
        """End the wave before, if the pair is of another one."""
        if name not in self._started:
            self._stack.close()
            (wave,) = (each for each in self._waves if name in each)
            self._started = {each: self._stack.enter_context(self._start(each)) for each in wave}
        return self._started[name]

    def __exit__(self, *_: object) -> None:
        self._stack.close()
