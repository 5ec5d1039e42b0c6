"""The CPU cache's KV connector, on vLLM's public interface, and what its workers report.

Its workers make copies. At the scheduler it asks for none until the tier steers it (`engine/cpu_cache/connector.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from agentcache.engine.start_cause import refuse_start
from agentcache.engine.vllm.base import VllmConfig, current_platform
from agentcache.engine.vllm.copiers import CopyOrders, PlainCopier, StreamCopier, end_engine
from agentcache.engine.vllm.host_memory import count_host_blocks, find_pieces, take_memory
from agentcache.engine.vllm.types import CacheHitSource, KVCacheBlocks, KVCacheConfig, Request, SchedulerOutput
from agentcache.engine.vllm.workers import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)


@dataclass
class HostBlocks(KVConnectorHandshakeMetadata):
    """Tells the scheduler how many blocks a worker has room for in the CPU cache."""

    count: int


@dataclass
class CopiesDone(KVConnectorWorkerMetadata):
    """Tells of copies that have ended: by a copy's number, the seconds that it took at each worker; None: it failed."""

    ended: dict[int, list[float | None]] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> CopiesDone:
        """Join what two workers report, or two steps."""
        assert isinstance(other, CopiesDone)
        numbers = dict.fromkeys((*self.ended, *other.ended))
        return CopiesDone({each: [*self.ended.get(each, ()), *other.ended.get(each, ())] for each in numbers})


class CopyingConnector(KVConnectorBase_V1, SupportsHMA):
    """Makes the copies that it is asked for, at a worker; counts blocks, and brings nothing, at the scheduler."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._config = vllm_config
        self._layout = kv_cache_config
        self.host_blocks = count_host_blocks(vllm_config, kv_cache_config)
        """How many blocks the CPU cache has room for."""
        self.copier: StreamCopier | PlainCopier | None = None
        self._orders = CopyOrders()

    @property
    def requires_kv_delivery(self) -> bool:
        """Tell vLLM that a block which is not stored is a miss some day, and no error."""
        return False

    def get_external_cache_hit_sources(self, request: Request, num_external_tokens: int) -> dict[CacheHitSource, int]:  # noqa: ARG002
        """Tell that all it brings comes from the CPU cache."""
        return {CacheHitSource.HOST: num_external_tokens} if num_external_tokens else {}

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """Return how many blocks this worker has room for."""
        return HostBlocks(self.host_blocks)

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: Mapping[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """Refuse workers with less room than the scheduler counts on: it names blocks that they do not have.

        Raises:
            InputError: Some pipeline stage has more layers than the first, and so room for fewer blocks.
        """
        counts = [each.count for each in metadata.values() if isinstance(each, HostBlocks)]
        if (least := min(counts, default=self.host_blocks)) < self.host_blocks:
            raise refuse_start(
                f"--kv-offloading-size: one worker has room for {least:,} blocks, the first for {self.host_blocks:,}, "
                "as pipeline stages have different numbers of layers; give a --pipeline-parallel-size that divides the "
                "layers or equal stages in VLLM_PP_LAYER_PARTITION, or leave the size out"
            )

    # At a worker.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Take the GPU's KV caches, and as much of the host's memory. Raises InputError if that is refused."""
        on_gpu = find_pieces(kv_caches, self._layout)
        on_host = take_memory(on_gpu, self.host_blocks, self._config)
        self.copier = (PlainCopier if current_platform.is_cpu() else StreamCopier)(on_gpu, on_host)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Take the step's copies, before the step itself is launched.

        Raises:
            ServerError: A copy would leave the CPU cache: what copies blocks checks no bounds.
        """
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, CopyOrders)
        self._orders = connector_metadata
        last = max(itertools.chain(self._orders.load_cpu_blocks, self._orders.store_cpu_blocks), default=0)
        if last >= self.host_blocks:
            raise end_engine(f"names block {last} of {self.host_blocks}")
        if self.copier is not None:
            self.copier.mark_step()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:  # noqa: ARG002 (vLLM's signature)
        """Begin the step's copies, in both directions: neither is of what the step itself reads or computes."""
        if self.copier is not None:
            self.copier.begin(self._orders)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: no step reads what is being loaded."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing: what a step computes is stored beside later ones."""

    def wait_for_save(self) -> None:
        """Do nothing: stores began with `start_load_kv`."""

    def build_connector_worker_meta(self) -> CopiesDone | None:
        """Return the copies that ended since the last call. Raises ServerError where those under way never end."""
        ended = () if self.copier is None else self.copier.take_ended()
        return CopiesDone({number: [seconds] for number, seconds in ended}) if ended else None

    def shutdown(self) -> None:
        """End the copies, and give the memory back."""
        if self.copier is not None:
            self.copier.close()

    # At the scheduler.

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:  # noqa: ARG002
        """Return no tokens."""
        return 0, False

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """Do nothing: no request is admitted with blocks that are yet to come."""

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:  # noqa: ARG002
        """Ask for no copies."""
        return CopyOrders()

    def request_finished_all_groups(self, request: Request, block_ids: tuple[list[int], ...]) -> tuple[bool, None]:  # noqa: ARG002
        """Let the request's blocks be freed: copies hold what they need."""
        return False, None
