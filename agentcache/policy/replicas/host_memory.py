"""What an engine has besides its cache on the GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostMemory:
    """A CPU cache for `tokens` tokens, each of which is back on the GPU after `load_s` seconds.

    It takes what the GPU's cache evicts. Without tokens there is none.
    """

    tokens: int = 0
    load_s: float = 0.0

    def lost_share(self, cache_tokens: int) -> float:
        """Return which share is computed again of what a full cache of the GPU, of so many tokens, evicts."""
        return cache_tokens / (cache_tokens + self.tokens)
