"""Changes an engine's cache and knobs in its own process, for measurements; no server does that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentcache.engine.cached_blocks import KV_CACHE_GROUP
from agentcache.engine.vllm.base import VllmConfig
from agentcache.engine.vllm.compat import check_vllm
from agentcache.engine.vllm.engine import EngineCore, Executor, LLMEngine
from agentcache.engine.vllm.types import BlockHash, Request, SamplingParams, make_block_hash_with_group_id
from agentcache.errors import CompatibilityError, InputError
from agentcache.profile.step_log import LoggingScheduler

LOGGING_SCHEDULER = f"{LoggingScheduler.__module__}.{LoggingScheduler.__name__}"


def start_engine(config: VllmConfig) -> LLMEngine:
    """Start an engine in this process, which only the caller steps."""
    return LLMEngine(config, Executor.get_class(config), log_stats=False)


class BenchControl:
    """The scheduler and the cache of an `LLMEngine` that runs in this process."""

    def __init__(self, engine: LLMEngine) -> None:
        check_vllm()
        core = getattr(engine.engine_core, "engine_core", None)
        if not isinstance(core, EngineCore) or not isinstance(core.scheduler, LoggingScheduler):
            raise CompatibilityError(f"measuring needs an engine in this process, with {LOGGING_SCHEDULER}")
        if core.request_block_hasher is None:
            raise InputError("measuring needs prefix caching; leave --no-enable-prefix-caching out")
        self.scheduler = core.scheduler
        self._hasher = core.request_block_hasher
        self._pool = core.scheduler.kv_cache_manager.block_pool
        self._step_tokens = core.scheduler.max_num_scheduled_tokens

    @property
    def block_size(self) -> int:
        """Return the tokens in a block."""
        return self.scheduler.block_size

    @property
    def cache_tokens(self) -> int:
        """The tokens that the cache holds: one block is vLLM's placeholder."""
        return (self._pool.num_gpu_blocks - 1) * self.block_size

    @property
    def step_tokens(self) -> int:
        """The most that a step computes."""
        return self._step_tokens

    @property
    def busy(self) -> bool:
        """Tell whether any request, a fill request included, is under way or not yet cleaned up."""
        return self.scheduler.has_requests()

    def keep_only(self, tokens: Sequence[int], intervals: Iterable[tuple[int, int]]) -> None:
        """Drop the prompt's cached blocks outside of the intervals of tokens, whose ends are whole blocks.

        Raises InputError for other ends.
        """
        kept: set[int] = set()
        for start, end in intervals:
            if start % self.block_size or end % self.block_size:
                raise InputError(f"interval {start} to {end}: both ends must be multiples of {self.block_size} tokens")
            kept.update(range(start // self.block_size, end // self.block_size))
        dropped = {
            make_block_hash_with_group_id(block_hash, KV_CACHE_GROUP)
            for index, block_hash in enumerate(self._hash(tokens))
            if index not in kept
        }
        # There may be several of a hash: two requests of a step can compute the same block.
        self._pool.evict_blocks({block.block_id for block in self._pool.blocks if block.block_hash in dropped})

    def limit_step(self, tokens: int | None) -> None:
        """Limit a step to so many tokens; None is what the engine was started with."""
        limit = self._step_tokens if tokens is None else min(tokens, self._step_tokens)
        self.scheduler.max_num_scheduled_tokens = limit

    def _hash(self, tokens: Sequence[int]) -> list[BlockHash]:
        request = Request("hashed only", list(tokens), SamplingParams(max_tokens=1), None, block_hasher=self._hasher)
        return request.block_hashes
