"""vLLM's KV connectors, and its CPU cache, of which ours is made."""

from __future__ import annotations

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector import SimpleCPUOffloadConnector
from vllm.v1.simple_kv_offload.copy_backend import DmaCopyBackend
from vllm.v1.simple_kv_offload.cuda_mem_ops import BatchMemcpyParams, build_params, copy_blocks, pin_tensor
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadMetadata, SimpleCPUOffloadWorkerMetadata
from vllm.v1.simple_kv_offload.worker import SimpleCPUOffloadWorker

__all__ = [
    "BatchMemcpyParams",
    "DmaCopyBackend",
    "KVConnectorBase_V1",
    "KVConnectorHandshakeMetadata",
    "KVConnectorMetadata",
    "KVConnectorRole",
    "KVConnectorWorkerMetadata",
    "SimpleCPUOffloadConnector",
    "SimpleCPUOffloadMetadata",
    "SimpleCPUOffloadWorker",
    "SimpleCPUOffloadWorkerMetadata",
    "build_params",
    "copy_blocks",
    "pin_tensor",
]
