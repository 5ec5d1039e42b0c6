"""How much prefill the policy saves or loses against a shadow LRU: an estimate, while the engine runs.

The shadow gets the same requests at the same times. Under LRU they would have run at other times, and jobs' next
requests would have come at others: of that it knows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from agentcache.engine.parts import Part
from agentcache.engine.segments.layer_rule import has_full_attention_alone
from agentcache.engine.segments.plan import Interval, SegmentCosts
from agentcache.engine.vllm.base import cdiv
from agentcache.engine.vllm.types import Request, Scheduler
from agentcache.policy.shadow_lru import ShadowLru


@dataclass(slots=True)
class ComparisonStats:
    """Since the start, of admitted requests. `saved_s` is of those that computed less than under LRU, `lost_s` more."""

    prompt_tokens: int = 0
    reused_tokens: int = 0
    lru_tokens: int = 0
    saved_s: float = 0.0
    lost_s: float = 0.0


class LruComparison(Part):
    """Told of requests that are admitted and that end. Costs O(blocks of the request), and nothing in a step.

    A request counts once, when it is admitted first: what preemptions make it compute again is in neither cache.
    """

    def __init__(self, shadow: ShadowLru, costs: SegmentCosts) -> None:
        self.stats = ComparisonStats()
        self._shadow = shadow
        self._costs = costs

    def admitted(self, request: Request, hit_tokens: int, filled: Collection[int]) -> None:  # noqa: ARG002
        """Count a client's request that holds its blocks and runs, unless it runs again after a preemption.

        `filled` are its blocks, by index, that fill requests have computed for it.
        """
        if request.request_id in self._shadow:
            return
        size = self._costs.block_size
        prefill = request.prefill_stats
        reused_tokens = prefill.num_cached_tokens if prefill is not None else 0
        lru_blocks = self._shadow.admit(
            request.request_id,
            request.block_hashes,
            num_blocks=cdiv(request.num_tokens, size),
            # The last token is computed in any case.
            most_hits=0 if request.skip_reading_prefix_cache else (request.num_tokens - 1) // size,
        )
        self.stats.prompt_tokens += request.num_tokens
        self.stats.reused_tokens += reused_tokens
        self.stats.lru_tokens += lru_blocks * size
        saved_s = find_saving(self._costs, reused_tokens // size, filled, lru_blocks)
        if saved_s > 0:
            self.stats.saved_s += saved_s
        else:
            self.stats.lost_s -= saved_s

    def ended(self, request: Request) -> None:
        """Note that a request is over. One that never ran is not known here."""
        size = self._costs.block_size
        computed = min(request.num_computed_tokens, request.num_tokens - 1)
        self._shadow.end(
            request.request_id,
            request.block_hashes[: computed // size],
            num_blocks=cdiv(request.num_computed_tokens, size),
        )

    def reset(self) -> None:
        """Forget what was cached: the prefix cache was reset."""
        self._shadow.clear()

    def check_integrity(self) -> None:
        """Raise IntegrityError when the shadow contradicts itself."""
        self._shadow.check_integrity()


def find_saving(costs: SegmentCosts, reused: int, filled: Collection[int], lru: int) -> float:
    """Return the seconds of prefill that a request saves which reuses so many blocks, against its first `lru` blocks.

    The blocks that it reuses are its first ones but for the `filled`, which fill requests computed.
    """
    end = reused + len(filled)
    between_s = costs.island_s(Interval(min(end, lru), max(end, lru)))
    fill_requests = sum(index - 1 not in filled for index in filled)
    filled_s = sum(map(costs.block_s, filled)) + fill_requests * costs.row_s
    return (between_s if end > lru else -between_s) - filled_s


def make_comparison(scheduler: Scheduler, get_costs: Callable[[], SegmentCosts]) -> LruComparison | None:
    """Make it where a request's block hashes and their prices tell what LRU would have hit and saved, else None."""
    manager = scheduler.kv_cache_manager
    hashes_are_of_blocks = manager.enable_caching and scheduler.hash_block_size == scheduler.block_size
    if not hashes_are_of_blocks or not has_full_attention_alone(scheduler.kv_cache_config):
        return None
    # One block is vLLM's placeholder.
    return LruComparison(ShadowLru(manager.block_pool.num_gpu_blocks - 1), get_costs())
