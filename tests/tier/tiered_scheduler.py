"""vLLM's scheduler over two caches without a worker: copies are made by hand, whenever the worst might happen."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from hand_clock import Clock
from lone_scheduler import BLOCK_SIZE, LoneScheduler, Step, make_config
from shadow_cache import digest_tokens
from vllm.config import VllmConfig
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_block_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.cpu_cache.options import make_transfer_config
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.vllm.connector import CopiesDone

# What no row may read.
WRONG = [-1] * BLOCK_SIZE
_SPEC = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=2, head_size=32, dtype=torch.float32)


@dataclass
class Copy:
    """Pairs of blocks that are yet to be copied, from and to."""

    number: int
    is_store: bool
    left: list[tuple[int, int]]
    fails: bool
    targets: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.targets = [target for _, target in self.left]


class TieredScheduler(LoneScheduler):
    """Copies are made at any moment that the worker's events allow.

    A copy waits for the steps before its own and for nothing else. So `pace` is drawn twice a step for each block under
    way: before the step writes what it computes, which is the earliest moment, and behind it. At 1.0 every block is
    copied with its own step, one half of them on either side. The CPU's worker, which fetches before the step and
    stores behind it, makes one of these draws. With the chance `fails` a copy fails: its targets then hold what no row
    may read.
    """

    fails = 0.0

    def __init__(self, scheduler: AgentScheduler, chance: random.Random, pace: float, in_flight: int) -> None:
        super().__init__(scheduler, in_flight, shadow=True)
        self.chance = chance
        self.pace = pace
        self.copies: list[Copy] = []
        self.host: dict[int, list[Any]] = {}
        # By the hash of a block, what an engine that computes every prompt has in it.
        self._computed: dict[bytes, list[Any]] = {}
        self._scheduled: dict[str, Request] = {}
        self._schedule = scheduler.schedule
        scheduler.schedule = self._begin_step  # type: ignore[method-assign]

    @property
    def idle(self) -> bool:
        """As vLLM's engine core has it: it goes on as long as the connector asks for that."""
        connector = self.scheduler.connector
        return super().idle and not self.copies and not (connector and connector.has_pending_push_work())

    def step(self) -> Step:
        self.scheduler.clock.now_s += 1.0
        step = super().step()
        self._copy(self.pace)
        self._report()
        self.scheduler.check_integrity()
        return step

    def store_ahead(self, victims: int | None = None, most: int | None = None) -> None:
        """Copy the GPU's next `victims`, all unless it is told, and at most so many beside a step."""
        storing = self.scheduler.tier.storing
        storing._margin = self.pool.num_gpu_blocks if victims is None else victims
        storing._most = storing._most if most is None else most

    @property
    def host_pool(self) -> BlockPool:
        """vLLM's pool of the CPU cache, which engines do not show."""
        pool: BlockPool = self.scheduler.tier.host._pool
        return pool

    def run_until_idle(self) -> None:
        steps = 0
        while not self.idle:
            self.step()
            steps += 1
            assert steps < 5000, "nothing goes on"

    def _begin_step(self, *args: Any) -> SchedulerOutput:
        output = self._note_copies(*args)
        self._copy(self.pace / 2)
        return output

    def _note_copies(self, *args: Any) -> SchedulerOutput:
        output = self._schedule(*args)
        self._scheduled.update((name, self.scheduler.requests[name]) for name in output.num_scheduled_tokens)
        metadata: Any = output.kv_connector_metadata
        if metadata.load_event >= 0:
            pairs = list(zip(metadata.load_cpu_blocks, metadata.load_gpu_blocks, strict=True))
            self.copies.append(Copy(metadata.load_event, False, pairs, self._is_to_fail()))
        if metadata.store_event >= 0:
            pairs = list(zip(metadata.store_gpu_blocks, metadata.store_cpu_blocks, strict=True))
            self.copies.append(Copy(metadata.store_event, True, pairs, self._is_to_fail()))
        return output

    def _note_computed(self) -> None:
        for request in self._scheduled.values():
            new = [index for index, each in enumerate(request.block_hashes) if each not in self._computed]
            digests = digest_tokens(request.all_token_ids[: (new[-1] + 1) * BLOCK_SIZE]) if new else []
            for index in new:
                self._computed[request.block_hashes[index]] = digests[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE]
        self._scheduled = {name: each for name, each in self._scheduled.items() if name in self.scheduler.requests}

    def _is_to_fail(self) -> bool:
        return bool(self.fails) and self.chance.random() < self.fails

    def _copy(self, chance: float) -> None:
        for copy in self.copies:
            now = [pair for pair in copy.left if self.chance.random() < chance]
            copy.left = [pair for pair in copy.left if pair not in now]
            for source, target in now:
                self._copy_block(copy, source, target)

    def _report(self) -> None:
        """What is stored must be what its hash says, also where no request comes back for it."""
        self._note_computed()
        done = [copy for copy in self.copies if not copy.left]
        self.copies = [copy for copy in self.copies if copy.left]
        ended = CopiesDone({copy.number: [None if copy.fails else 0.5] for copy in done})
        self.scheduler.connector.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=ended))
        if self.scheduler.tier is None:
            return
        for target in (target for copy in done if copy.is_store for target in copy.targets):
            if (key := self.host_pool.blocks[target].block_hash) is not None:
                assert self.host[target] == self._computed[get_block_hash(key)], f"block {target} holds another's KV"

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
    engine: Mapping[str, Any] | None = None,
    tuning: Mapping[str, float | None] = {},
    **knobs: Any,
) -> TieredScheduler:
    """Fetch whatever the CPU cache has, however little that saves. Pins are short, so that other jobs push KV out."""
    tier = {"enabled": True, "link_gb_s": 1e6}
    config = make_config(
        model_path,
        SCHEDULER_CLASS,
        engine,
        tuning={"row_s": 0.0, "link_latency_s": 0.0, "max_ttl_s": 5.0, **tuning},
        **{"policy": "agentcache", "tier": tier, **knobs},
    )
    scheduler = make_connected(config, blocks, host_blocks)
    scheduler.defer_block_free = in_flight > 1
    return TieredScheduler(scheduler, random.Random(seed), pace, in_flight)


def make_connected(config: VllmConfig, blocks: int, host_blocks: int, *, steered: bool = True) -> AgentScheduler:
    """A scheduler with a connector for the CPU cache: ours, or vLLM's own."""
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
