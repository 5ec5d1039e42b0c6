"""vLLM's tiers of memory and disk on its CPU backend, for which it has no worker: this one copies at once."""

from __future__ import annotations

from pathlib import Path

import torch
from vllm.config import KVTransferConfig
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CopyingWorker(OffloadingWorker):
    """Copies between the engine's blocks and a region that memory and disk share; one block a chunk."""

    def __init__(self, kv_caches: CanonicalKVCaches, region: SharedOffloadRegion) -> None:
        self._region = region
        self._finished: list[TransferResult] = []
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        for cache in kv_caches.tensors:
            engine = cache.tensor.view(torch.int8).view(-1, cache.page_size_bytes)
            self._pairs.append((engine, region.create_next_worker_view(cache.page_size_bytes)))

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        assert isinstance(dst_spec, BlockIDsLoadStoreSpec)
        for engine, stored in self._pairs:
            stored[dst_spec.block_ids] = engine[src_spec.block_ids]
        return self._finish(job_id)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        assert isinstance(src_spec, BlockIDsLoadStoreSpec)
        for engine, stored in self._pairs:
            engine[dst_spec.block_ids] = stored[src_spec.block_ids]
        return self._finish(job_id)

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Every copy has been made."""

    def shutdown(self) -> None:
        self._pairs.clear()
        self._region.cleanup()

    def _finish(self, job_id: int) -> bool:
        self._finished.append(TransferResult(job_id, success=True, transfer_size=1, transfer_time=1e-6))
        return True


class DiskSpec(TieringOffloadingSpec):
    """vLLM's own, but for the worker."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        region = SharedOffloadRegion(
            engine_id=self._engine_id,
            num_chunks=self.num_chunks,
            rank=self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        return CopyingWorker(kv_caches, region)


def make_disk_config(folder: Path, host_bytes: int) -> KVTransferConfig:
    """So much memory, and behind it a folder."""
    return KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        kv_connector_extra_config={
            "spec_name": "DiskSpec",
            "spec_module_path": __name__,
            "cpu_bytes_to_use": host_bytes,
            "secondary_tiers": [{"type": "fs", "root_dir": str(folder)}],
        },
    )
