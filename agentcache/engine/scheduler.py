"""vLLM's scheduler with the cache policy of agentcache inside."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from agentcache.config import AgentCacheConfig, read_config
from agentcache.engine.block_queue import BlockQueue, replace_queue
from agentcache.engine.chunking import prefill_budget
from agentcache.engine.compat import check_vllm
from agentcache.engine.evictor_inputs import build_inputs
from agentcache.engine.multi_segment import MultiSegmentScheduler
from agentcache.engine.segments import SegmentCosts
from agentcache.errors import IntegrityError
from agentcache.policy.evictor import Evictor
from agentcache.policy.registry import Policy, find_policy


class AgentScheduler(MultiSegmentScheduler):
    """Entered through vLLM's `scheduler_cls`, configured by `additional_config["agentcache"]`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check_vllm()
        super().__init__(*args, **kwargs)
        self.config = read_config(self.vllm_config.additional_config)
        self.evictor: Evictor | None = None
        self.block_queue: BlockQueue | None = None
        # Prompt tokens that the last step could have had; None while nothing limits them.
        self.prefill_budget: int | None = None
        self._correction_factors: dict[str, float] = {}
        self._use_policy(find_policy(self.config.policy), self.config)

    def _use_policy(self, policy: Policy, config: AgentCacheConfig) -> None:
        pool = self.kv_cache_manager.block_pool
        # Evictor and segments ask for the same; making them fits a cost model.
        get_inputs = cache(partial(build_inputs, self.vllm_config, config, pool.num_gpu_blocks, self.block_size))
        if policy.make_evictor is not None:
            self.evictor = policy.make_evictor(get_inputs)
            self.block_queue = replace_queue(pool, self.evictor, time.monotonic)
        if _is_on(config.segments.enabled, policy.segments):
            segments = config.segments
            self.fill_gaps(lambda: SegmentCosts(get_inputs().loss, segments.row_s, self.block_size), segments.max_gaps)
        # Measurements change it.
        self.chunking = config.chunking if _is_on(config.chunking.enabled, policy.chunking) else None
        self._step_tokens = self.max_num_scheduled_tokens

    def set_clock(self, clock: Callable[[], float]) -> None:
        """Take the time from `clock`, in seconds, instead of the machine: for simulations, before the first request."""
        if self.block_queue is not None:
            self.block_queue.clock = clock

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        if self.chunking is not None:
            decodes = sum(not request.is_prefill_chunk for request in self.running)
            self.prefill_budget = prefill_budget(self.chunking, decodes, self._step_tokens)
            self.max_num_scheduled_tokens = decodes + self.prefill_budget
        return super().schedule(throttle_prefills)

    def set_correction_factor(self, request_id: str, factor: float) -> None:
        """Multiply the value of the blocks that this request will free: above 1 where they will soon be used again."""
        self._correction_factors[request_id] = factor

    def _free_request_blocks(self, request: Request) -> None:
        factor = self._correction_factors.pop(request.request_id, 1.0)
        if self.block_queue is None or factor == 1.0:
            super()._free_request_blocks(request)
            return
        self.block_queue.factor = factor
        super()._free_request_blocks(request)
        self.block_queue.factor = 1.0

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        succeeded = super().reset_prefix_cache(reset_running_requests, reset_connector)
        if succeeded and self.block_queue is not None:
            self.block_queue.forget_kv()
        return succeeded

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
        """Under priorities vLLM may preempt what it has scheduled in this very step, and so will not be computed.

        Its new blocks are registered by then: forget them, or others would hit what nobody has written.
        """
        managers = self.kv_cache_manager.coordinator.single_type_managers
        blocks = self.kv_cache_manager.get_blocks(request.request_id).blocks
        for group, manager in zip(blocks, managers, strict=True):
            unwritten = group[request.num_computed_tokens // manager.block_size :]
            self.kv_cache_manager.evict_blocks({block.block_id for block in unwritten if block.block_hash is not None})
        super()._preempt_request(request, timestamp, drop_stale_output)

    def check_integrity(self) -> None:
        """Raise IntegrityError when the free blocks, the requests' blocks and the reference counts disagree."""
        if self.block_queue is not None:
            self.block_queue.check_integrity()
        if self.gap_filler is not None:
            self._check_references(self.gap_filler.count_held())

    def _check_references(self, held: Counter[int]) -> None:
        (manager,) = self.kv_cache_manager.coordinator.single_type_managers
        owned = Counter(block.block_id for blocks in manager.req_to_blocks.values() for block in blocks)
        expected = owned + held
        wrong = [
            block.block_id
            for block in self.kv_cache_manager.block_pool.blocks
            if not block.is_null and block.ref_cnt != expected[block.block_id]
        ]
        if wrong:
            raise IntegrityError(f"blocks with another reference count than their owners give: {wrong[:20]}")


def _is_on(wanted: bool | None, by_policy: bool) -> bool:
    return by_policy if wanted is None else wanted
