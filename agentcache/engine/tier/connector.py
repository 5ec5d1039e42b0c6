"""The connector that vLLM loads: its own for the CPU cache, steered by our scheduler where that can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentcache.engine.start_cause import tell_cause
from agentcache.engine.tier.worker import CopiesDone, CpuTierWorker, HostBlocks, TierWorker
from agentcache.engine.vllm.base import current_platform
from agentcache.engine.vllm.config import VllmConfig
from agentcache.engine.vllm.offload import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    SimpleCPUOffloadConnector,
)
from agentcache.engine.vllm.types import KVCacheBlocks, KVCacheConfig, KVConnectorOutput, Request, SchedulerOutput
from agentcache.errors import InputError

if TYPE_CHECKING:
    from agentcache.engine.tier.tier import Tier


class TierConnector(SimpleCPUOffloadConnector):
    """vLLM's SimpleCPUOffloadConnector until `steer` is called: blocks are stored when computed, and go LRU."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.tier: Tier | None = None
        if self.worker_handler is not None:
            kind = CpuTierWorker if current_platform.is_cpu() else TierWorker
            self.worker_handler = kind(vllm_config, kv_cache_config, self.worker_handler.cpu_capacity_bytes)

    @property
    def host_blocks(self) -> int:
        """Return how many blocks the CPU cache has room for; 0 without prefix caching."""
        return self.scheduler_manager.num_cpu_blocks if self.scheduler_manager is not None else 0

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """Return how many blocks this worker has room for."""
        return HostBlocks(self.worker_handler.num_cpu_blocks) if self.worker_handler is not None else None

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """Refuse workers with less room than the scheduler counts on: it names blocks that they do not have.

        Raises:
            InputError: Some pipeline stage has more layers than the first, and so room for fewer blocks.
        """
        counts = [each.count for each in metadata.values() if isinstance(each, HostBlocks)]
        if (least := min(counts, default=self.host_blocks)) < self.host_blocks:
            message = (
                f"--kv-offloading-size: one worker has room for {least:,} blocks, the first for {self.host_blocks:,}, "
                "as pipeline stages have different numbers of layers; give a --pipeline-parallel-size that divides the "
                "layers or equal stages in VLLM_PP_LAYER_PARTITION, or leave the size out"
            )
            tell_cause(message)
            raise InputError(message)

    def steer(self, tier: Tier) -> None:
        """Leave to `tier` what is stored, kept and fetched."""
        self.tier = tier

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Return no tokens: what is fetched is in the GPU's cache by then. None while the request must wait."""
        if self.tier is None:
            return super().get_num_new_matched_tokens(request, num_computed_tokens)
        return (None, False) if self.tier.make_wait(request) else (0, False)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """Do nothing: no request is admitted with blocks that are yet to come."""
        if self.tier is None:
            super().update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """Tell the workers what to copy."""
        if self.tier is None:
            return super().build_connector_meta(scheduler_output)
        return self.tier.begin_copies(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Take over what the workers have copied."""
        if self.tier is None:
            super().update_connector_output(connector_output)
            return
        done = connector_output.kv_connector_worker_meta
        if isinstance(done, CopiesDone):
            self.tier.end_copies(done)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Let the request's blocks be freed: copies hold what they need."""
        if self.tier is None:
            return super().request_finished(request, block_ids)
        self.tier.forget(request)
        return False, None

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Do as `request_finished`."""
        if self.tier is None:
            return super().request_finished_all_groups(request, block_ids)
        self.tier.forget(request)
        return False, None

    def has_pending_push_work(self) -> bool:
        """Tell whether the engine must go on for the sake of copies."""
        return super().has_pending_push_work() if self.tier is None else self.tier.needs_step

    def reset_cache(self) -> bool | None:
        """Forget what is in the CPU cache. Return False while blocks are on their way from it."""
        return super().reset_cache() if self.tier is None else self.tier.clear()
