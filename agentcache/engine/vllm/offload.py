"""vLLM's KV connectors, and of its own CPU cache what is left to it and what copies blocks."""

from __future__ import annotations

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector import SimpleCPUOffloadConnector
from vllm.utils.platform_utils import is_pin_memory_available
from vllm.v1.simple_kv_offload.cuda_mem_ops import (
    CU_MEMCPY_SRC_ACCESS_ORDER_ANY,
    CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
    BatchMemcpyParams,
    build_params,
    copy_blocks,
    pin_tensor,
)
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadMetadata, SimpleCPUOffloadWorkerMetadata

__all__ = [
    "CU_MEMCPY_SRC_ACCESS_ORDER_ANY",
    "CU_MEMCPY_SRC_ACCESS_ORDER_STREAM",
    "BatchMemcpyParams",
    "KVConnectorBase_V1",
    "KVConnectorHandshakeMetadata",
    "KVConnectorMetadata",
    "KVConnectorRole",
    "KVConnectorWorkerMetadata",
    "SimpleCPUOffloadConnector",
    "SimpleCPUOffloadMetadata",
    "SimpleCPUOffloadWorkerMetadata",
    "SupportsHMA",
    "build_params",
    "copy_blocks",
    "is_pin_memory_available",
    "pin_tensor",
]
