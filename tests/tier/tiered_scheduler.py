"""vLLM's scheduler over two caches without a worker: copies are made by hand, whenever the worst might happen."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from hand_clock import Clock
from lone_scheduler import BLOCK_SIZE, LoneScheduler, Step, make_config
from vllm.config import VllmConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.structured_output import StructuredOutputManager

from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.tier.options import make_transfer_config
from agentcache.engine.tier.worker import CopiesDone

# What no row may read.
WRONG = [-1] * BLOCK_SIZE
_SPEC = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=2, head_size=32, dtype=torch.float32)


@dataclass
class Copy:
    """Pairs of blocks that are yet to be copied, from and to."""

    number: int
    is_store: bool
    left: list[tuple[int, int]] = field(default_factory=list)
    fails: bool = False


class TieredScheduler(LoneScheduler):
    """Each step every block under way is copied with the chance `pace`: copies end late and in any order.

    With the chance `fails` a copy fails: its targets then hold what nobody may read.
    """

    fails = 0.0

    def __init__(self, scheduler: AgentScheduler, chance: random.Random, pace: float, in_flight: int) -> None:
        super().__init__(scheduler, in_flight, shadow=True)
        self.chance = chance
        self.pace = pace
        self.copies: list[Copy] = []
        self.host: dict[int, list[int]] = {}
        self._schedule = scheduler.schedule
        scheduler.schedule = self._note_copies  # type: ignore[method-assign]

    @property
    def idle(self) -> bool:
        return super().idle and not self.copies

    def step(self) -> Step:
        self.scheduler.clock.now_s += 1.0
        step = super().step()
        self._copy()
        self.scheduler.check_integrity()
        return step

    def run_until_idle(self) -> None:
        steps = 0
        while not self.idle:
            self.step()
            steps += 1
            assert steps < 5000, "nothing goes on"

    def _note_copies(self, *args: Any) -> SchedulerOutput:
        output = self._schedule(*args)
        metadata: Any = output.kv_connector_metadata
        if metadata.load_event >= 0:
            pairs = list(zip(metadata.load_cpu_blocks, metadata.load_gpu_blocks, strict=True))
            self.copies.append(Copy(metadata.load_event, False, pairs, self._is_to_fail()))
        if metadata.store_event >= 0:
            pairs = list(zip(metadata.store_gpu_blocks, metadata.store_cpu_blocks, strict=True))
            self.copies.append(Copy(metadata.store_event, True, pairs, self._is_to_fail()))
        return output

    def _is_to_fail(self) -> bool:
        return bool(self.fails) and self.chance.random() < self.fails

    def _copy(self) -> None:
        """After the step has written what it computes, as vLLM's workers order it."""
        for copy in self.copies:
            now = [pair for pair in copy.left if self.chance.random() < self.pace]
            copy.left = [pair for pair in copy.left if pair not in now]
            for source, target in now:
                self._copy_block(copy, source, target)
        done = [copy for copy in self.copies if not copy.left]
        self.copies = [copy for copy in self.copies if copy.left]
        counts = CopiesDone(
            {copy.number: 1 for copy in done if copy.is_store},
            {copy.number: 1 for copy in done if not copy.is_store},
            failed={copy.number for copy in done if copy.fails},
            seconds={copy.number: 0.5 for copy in done if not copy.fails},
        )
        self.scheduler.connector.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=counts))

    def _copy_block(self, copy: Copy, source: int, target: int) -> None:
        assert self.shadow is not None
        slots = self.shadow.slots
        if copy.is_store:
            self.host[target] = WRONG if copy.fails else slots[source * BLOCK_SIZE : (source + 1) * BLOCK_SIZE]
        else:
            slots[target * BLOCK_SIZE : (target + 1) * BLOCK_SIZE] = WRONG if copy.fails else self.host[source]


def make_tiered(
    model_path: str,
    *,
    blocks: int = 40,
    host_blocks: int = 200,
    in_flight: int = 1,
    pace: float = 1.0,
    seed: int = 0,
    prefetch: bool = True,
    engine: Mapping[str, Any] | None = None,
    **knobs: Any,
) -> TieredScheduler:
    """Fetch whatever the host's memory has, however little that saves."""
    tier = {"enabled": True, "latency_s": 0.0, "link_gb_s": 1e6, "prefetch": prefetch}
    config = make_config(
        model_path,
        SCHEDULER_CLASS,
        engine,
        **{"policy": "agentcache", "segments": {"row_s": 0.0}, "tier": tier, **knobs},
    )
    scheduler = make_connected(config, blocks, host_blocks)
    scheduler.defer_block_free = in_flight > 1
    return TieredScheduler(scheduler, random.Random(seed), pace, in_flight)


def make_connected(config: VllmConfig, blocks: int, host_blocks: int, *, steered: bool = True) -> AgentScheduler:
    """A scheduler with a connector for the host's memory: ours, or vLLM's own."""
    config.cache_config.num_gpu_blocks = blocks
    config.kv_transfer_config = make_transfer_config(host_blocks * _SPEC.page_size_bytes, steered=steered, lazy=False)
    tensor = KVCacheTensor(blocks * _SPEC.page_size_bytes, ["layer"], layer_stride=0, block_stride=0)
    return AgentScheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(blocks, [tensor], [KVCacheGroupSpec(["layer"], _SPEC)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
        clock=Clock(),
    )
