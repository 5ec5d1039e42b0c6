"""Gives what vLLM's workers know of a model, and its logits processors."""

from __future__ import annotations

from vllm.distributed import get_world_group
from vllm.model_executor.models.config import MODELS_CONFIG_MAP
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

__all__ = [
    "MODELS_CONFIG_MAP",
    "BatchUpdate",
    "LogitsProcessor",
    "get_world_group",
    "process_dict_updates",
]
