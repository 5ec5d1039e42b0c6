"""vLLM's configuration, and the arguments that it is made from."""

from __future__ import annotations

from vllm.config import KVTransferConfig, ModelConfig, ParallelConfig, VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs

__all__ = [
    "AsyncEngineArgs",
    "EngineArgs",
    "KVTransferConfig",
    "ModelConfig",
    "ParallelConfig",
    "VllmConfig",
]
