"""Least recently used first: the same victims as vLLM's own free list, one by one."""

from __future__ import annotations

from agentcache import _evictor
from agentcache.policy.compiled import CompiledEvictor


class LruEvictor(CompiledEvictor):
    """A linked list, next victim first. Every operation is O(1) per block; any number of blocks."""

    def __init__(self) -> None:
        super().__init__(_evictor.LruEvictor())
