"""Families of layers whose gaps can be filled."""

from __future__ import annotations

from dataclasses import replace

import torch
from grouped_scheduler import CHUNKED, FULL, WINDOW
from lone_scheduler import BLOCK_SIZE
from vllm.v1.kv_cache_interface import KVCacheSpec, MLAAttentionSpec

NARROW = replace(WINDOW, sliding_window=20)


# On the CPU vLLM has no prefix caching for it.
LATENT = MLAAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=64, dtype=torch.float32)


FAMILIES: dict[str, list[KVCacheSpec]] = {
    "gpt-oss": [WINDOW, FULL],
    "gemma": [WINDOW, WINDOW, FULL, WINDOW],
    "two windows": [FULL, WINDOW, NARROW, FULL],
    "llama-4": [CHUNKED, CHUNKED, FULL],
    "deepseek": [LATENT],
}
