"""Takes the place of vLLM's KV cache manager: looks for room, and counts gaps that were filled as computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentcache.engine.segments.gap_filler import GapFiller
from agentcache.engine.vllm.patches import replace
from agentcache.engine.vllm.types import KVCacheBlocks, KVCacheManager, Request


def _ignore(request: Request) -> None:
    pass


def _find_no_room(request: Request) -> bool:  # noqa: ARG001
    return False


@dataclass(frozen=True, slots=True)
class Steering:
    """What a scheduler wants of its manager."""

    begin: Callable[[Request], None] = _ignore
    """Called before anything is allocated for a request."""
    make_room: Callable[[Request], bool] = _find_no_room
    """Called when there is no room. Whether it is worth another try."""
    give_up: Callable[[Request], None] = _ignore
    """Called when there is still none: vLLM preempts next."""
    filler: GapFiller | None = None
    register_fill: Callable[[Request], None] = _ignore
    """Called with a fill request that runs."""
    looks_up_once: bool = False
    """Schedule with the blocks that were looked up to plan a fill request, in place of a second look-up."""


class SteeredCacheManager(KVCacheManager):
    """Has the state of vLLM's own manager, whose class it takes."""

    steering: Steering

    def allocate_slots(self, request: Request, num_new_tokens: int, *args: Any, **kwargs: Any) -> KVCacheBlocks | None:
        """Allocate blocks; look for room before vLLM preempts for a request that finds none."""
        self.steering.begin(request)
        blocks = super().allocate_slots(request, num_new_tokens, *args, **kwargs)
        if blocks is None and self.steering.make_room(request):
            blocks = super().allocate_slots(request, num_new_tokens, *args, **kwargs)
        if blocks is None:
            self.steering.give_up(request)
        return blocks

    def get_computed_blocks(self, request: Request, *limit: int | None) -> tuple[KVCacheBlocks, int, int]:
        """Find the cached blocks that a request begins with. vLLM 0.33 gives the most tokens, None for any."""
        # With returned routed experts there is a limit: such engines fill no gaps.
        is_limited = any(tokens is not None for tokens in limit)
        filler = self.steering.filler if self.steering.looks_up_once and not is_limited else None
        if filler is None or (prefix := filler.find_prefix(request)) is None:
            return super().get_computed_blocks(request, *limit)
        return self.create_kv_cache_blocks(prefix.groups), prefix.tokens, prefix.boundary

    def record_prefix_cache_stats(self, request: Request, num_hits: int) -> None:
        """Record an admission: that of a fill request nowhere else, that of others without what was brought."""
        brought = (0, 0) if self.steering.filler is None else self.steering.filler.admit(request, num_hits)
        if brought is None:
            self.steering.register_fill(request)
            return
        filled, fetched = brought
        stats = request.prefill_stats
        if filled + fetched and stats is not None and request.num_preemptions == 0:
            local = stats.num_local_cached_tokens - filled - fetched
            stats.set(stats.num_prompt_tokens, local, stats.num_external_cached_tokens + fetched)
        super().record_prefix_cache_stats(request, num_hits - filled - fetched)


def steer(manager: KVCacheManager, steering: Steering, kind: type[SteeredCacheManager] = SteeredCacheManager) -> None:
    """Let a manager of vLLM's do as its scheduler wants."""
    replace(manager, "__class__", kind)
    assert isinstance(manager, SteeredCacheManager)
    manager.steering = steering
