"""vLLM's scheduler with the cache policy of agentcache inside."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from agentcache.config import read_config
from agentcache.engine.block_queue import BlockQueue, replace_queue
from agentcache.engine.compat import check_vllm
from agentcache.engine.evictor_inputs import build_inputs
from agentcache.policy.registry import find_policy


class AgentScheduler(AsyncScheduler):
    """Entered through vLLM's `scheduler_cls`, configured by `additional_config["agentcache"]`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check_vllm()
        super().__init__(*args, **kwargs)
        config = read_config(self.vllm_config.additional_config)
        policy = find_policy(config.policy)
        self.block_queue: BlockQueue | None = None
        if policy.make_evictor is not None:
            pool = self.kv_cache_manager.block_pool
            get_inputs = partial(build_inputs, self.vllm_config, config, pool.num_gpu_blocks, self.block_size)
            self.block_queue = replace_queue(pool, policy.make_evictor(get_inputs), time.monotonic)

    def set_clock(self, clock: Callable[[], float]) -> None:
        """Take the time from `clock`, in seconds, instead of the machine: for simulations, before the first request."""
        if self.block_queue is not None:
            self.block_queue.clock = clock

    def check_integrity(self) -> None:
        """Raise IntegrityError when the free blocks and the pool's reference counts disagree."""
        if self.block_queue is not None:
            self.block_queue.check_integrity()
