"""Schedulers of models whose layers do not all keep the same, without a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from hand_clock import Clock
from lone_scheduler import BLOCK_SIZE, LoneScheduler, make_config
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.structured_output import StructuredOutputManager

from agentcache.engine.constants import SCHEDULER_CLASS

# The name and level of our warnings.
WARNED = ("vllm.agentcache", "WARNING")


ATTENTION: dict[str, Any] = {"block_size": BLOCK_SIZE, "num_kv_heads": 2, "head_size": 32, "dtype": torch.float32}


FULL = FullAttentionSpec(**ATTENTION)


WINDOW = SlidingWindowSpec(**ATTENTION, sliding_window=4 * BLOCK_SIZE)


RECURRENT = MambaSpec(
    block_size=BLOCK_SIZE,
    shapes=((1024,),),
    dtypes=(torch.float32,),
    mamba_cache_mode="align",
    page_size_padded=FULL.page_size_bytes,
)


def make_lone(
    model_path: str,
    specs: list[KVCacheSpec],
    blocks: int = 101,
    *,
    in_flight: int = 1,
    shadow: bool = False,
    engine: Mapping[str, Any] | None = None,
    **knobs: Any,
) -> LoneScheduler:
    config = make_config(model_path, SCHEDULER_CLASS, engine, **knobs)
    config.cache_config.num_gpu_blocks = blocks
    config.cache_config.mamba_cache_mode = "align"
    groups = [KVCacheGroupSpec([f"layer {number}"], spec) for number, spec in enumerate(specs)]
    scheduler: Any = config.scheduler_config.get_scheduler_cls()(
        vllm_config=config,
        # As the engine core makes it: windows and states at a prompt's end alone, unless a scheduler keeps more.
        kv_cache_config=KVCacheConfig(
            blocks,
            [],
            groups,
            prefix_cache_retention_interval=config.cache_config.prefix_cache_retention_interval,
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
    )
    scheduler.clock = Clock()
    return LoneScheduler(scheduler, in_flight, shadow=shadow)


CHUNKED = ChunkedLocalAttentionSpec(**ATTENTION, attention_chunk_size=8 * BLOCK_SIZE)


FAMILIES: dict[str, list[KVCacheSpec]] = {
    "gpt-oss": [WINDOW, FULL],
    "gemma": [WINDOW, WINDOW, WINDOW, FULL],
    "llama-4": [CHUNKED, CHUNKED, FULL],
    "qwen3-next": [RECURRENT, RECURRENT, RECURRENT, FULL],
    "windows alone": [WINDOW],
    "states alone": [RECURRENT],
}


def find_hits(lone: LoneScheduler, tokens: list[int]) -> list[KVCacheBlock]:
    lone.add("look", tokens, output_tokens=1)
    hits: list[KVCacheBlock] = lone.scheduler.find_hits(lone.scheduler.requests["look"])
    lone.abort("look")
    return hits
