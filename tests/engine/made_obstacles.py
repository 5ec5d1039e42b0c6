"""Engines that cannot have gaps, and what the documentation says of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from grouped_scheduler import FULL, RECURRENT, WINDOW
from lone_scheduler import BLOCK_SIZE, make_config
from vllm.config import KVTransferConfig
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec, KVCacheTensor
from vllm.v1.structured_output import StructuredOutputManager

import agentcache
from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.rpc.snapshot import EngineSnapshot, make_snapshot
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.segments.obstacles import Obstacle
from agentcache.server.metrics import render_metrics
from agentcache.server.snapshot_reader import Reading

DOCUMENTED = Path(agentcache.__file__).parents[1] / "docs" / "metrics-reference.md"


BLOCKS = 64


DRAFTS = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}


# vLLM's own, which needs nobody.
CONNECTOR = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}


LONG = replace(FULL, block_size=2 * BLOCK_SIZE)


# vLLM's options, by the obstacle that they are.
OPTIONS: dict[Obstacle | None, dict[str, Any]] = {
    Obstacle.PREFIX_CACHING_OFF: {"enable_prefix_caching": False},
    Obstacle.DRAFTER: {"speculative_config": DRAFTS},
    Obstacle.KV_CONNECTOR: {"kv_transfer_config": CONNECTOR, "disable_hybrid_kv_cache_manager": True},
}


# What the options for it, on a CPU, refuse: part of the configuration, field, and value.
SWITCHES: dict[Obstacle | None, tuple[str, str, Any]] = {
    Obstacle.DRAFTER: ("speculative_config", "method", "eagle"),
    Obstacle.ROUTED_EXPERTS: ("aux_output_config", "enable_return_routed_experts", True),
    Obstacle.DUAL_BATCH_OVERLAP: ("parallel_config", "enable_dbo", True),
    Obstacle.CONTEXT_PARALLEL: ("parallel_config", "decode_context_parallel_size", 2),
}


LAYERS: dict[Obstacle | None, list[KVCacheSpec]] = {
    Obstacle.RECURRENT_LAYERS: [FULL, RECURRENT],
    Obstacle.OTHER_LAYERS: [FULL, replace(FULL, tokens_per_state=4)],
    Obstacle.WINDOWS_ALONE: [WINDOW],
    Obstacle.BLOCK_SIZES: [LONG, WINDOW],
    Obstacle.HASH_SIZE: [LONG, replace(WINDOW, block_size=2 * BLOCK_SIZE)],
}


def make_scheduler(
    model_path: str,
    obstacle: Obstacle | None,
    *,
    engine: Mapping[str, Any] | None = None,
    specs: list[KVCacheSpec] | None = None,
    transfer: KVTransferConfig | None = None,
    **knobs: Any,
) -> AgentScheduler:
    """As the engine core makes it, for layers whose blocks are hashed in the size of the smallest.

    `engine` are options, and `specs` layers, beside those of the obstacle.
    """
    options = {**OPTIONS.get(obstacle, {}), **(engine or {})}
    config = make_config(model_path, SCHEDULER_CLASS, options, **{"policy": "asymcache", **knobs})
    config.kv_transfer_config = transfer or config.kv_transfer_config
    if obstacle in SWITCHES:
        part, field, value = SWITCHES[obstacle]
        setattr(getattr(config, part), field, value)
    config.cache_config.num_gpu_blocks = BLOCKS
    config.cache_config.mamba_cache_mode = "align"
    specs = specs or LAYERS.get(obstacle, [FULL])
    names = [f"layer {number}" for number in range(len(specs))]
    tensors = [KVCacheTensor(BLOCKS * FULL.page_size_bytes, [name], 0, FULL.page_size_bytes) for name in names]
    groups = [KVCacheGroupSpec([name], spec) for name, spec in zip(names, specs, strict=True)]
    ranks = config.parallel_config.decode_context_parallel_size
    scheduler = config.scheduler_config.get_scheduler_cls()(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(BLOCKS, tensors, groups),
        structured_output_manager=StructuredOutputManager(config),
        block_size=max(spec.block_size for spec in specs) * ranks,
        hash_block_size=BLOCK_SIZE * ranks,
    )
    assert isinstance(scheduler, AgentScheduler)
    return scheduler


def read_label(scheduler: AgentScheduler, name: str = "obstacle") -> str:
    """What the metrics of this engine say."""
    snapshot = EngineSnapshot(**make_snapshot(scheduler).model_dump(), engine=0)
    (line,) = re.findall(
        r"^agentcache:policy_info.*$", render_metrics(Reading((snapshot,), 0.0)).decode(), re.MULTILINE
    )
    (label,) = re.findall(rf'\b{name}="([^"]*)"', line)
    return str(label)
