"""Engines that leave the CPU cache to vLLM's own tier say why: at the start, and in the metrics."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from grouped_scheduler import FULL, WINDOW
from made_obstacles import DOCUMENTED, DRAFTS, make_scheduler, read_label
from prefix_router import EVENTS
from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config
from vllm.v1.kv_cache_interface import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    UniformTypeKVCacheSpecs,
)

from agentcache.engine.cpu_cache.connector import TierConnector, TierObstacle
from agentcache.engine.cpu_cache.options import make_transfer_config
from agentcache.engine.rpc.snapshot import make_snapshot
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.segments.obstacles import Obstacle
from agentcache.engine.vllm.workers import KVConnectorRole, SimpleCPUOffloadConnector
from agentcache.errors import InputError

# What stands in the way of the tier alone.
OWN: dict[TierObstacle, dict[str, Any]] = {
    TierObstacle.PREFIX_CACHING_OFF: {"engine": {"enable_prefix_caching": False}},
    TierObstacle.SEGMENTS_OFF: {"segments": {"enabled": False}},
    TierObstacle.KV_EVENTS: {"engine": EVENTS},
    TierObstacle.SPECULATIVE_DECODING: {"engine": {"speculative_config": DRAFTS}},
    TierObstacle.LAYER_KINDS: {"specs": [FULL, WINDOW]},
}
SHARED = [
    Obstacle.ROUTED_EXPERTS,
    Obstacle.DUAL_BATCH_OVERLAP,
    Obstacle.CONTEXT_PARALLEL,
    Obstacle.RECURRENT_LAYERS,
    Obstacle.OTHER_LAYERS,
    Obstacle.BLOCK_SIZES,
]


def make_offloading(model_path: str, obstacle: Obstacle | None = None, **options: Any) -> AgentScheduler:
    transfer = make_transfer_config(200 * FULL.page_size_bytes, steered=True, lazy=False)
    return make_scheduler(model_path, obstacle, transfer=transfer, **{"policy": "agentcache", **options})


def check_says(scheduler: AgentScheduler, log: pytest.LogCaptureFixture, obstacle: Obstacle | TierObstacle) -> None:
    assert scheduler.tier is None
    (banner,) = (line for line in log.messages if line.startswith("agentcache: policy "))
    assert banner.endswith(f"; the CPU cache is vLLM's own tier, not steered: {obstacle.text}.")
    assert make_snapshot(scheduler).tier_obstacle == obstacle.text
    assert read_label(scheduler, "tier_obstacle") == obstacle.slug


@pytest.mark.parametrize("obstacle", OWN, ids=lambda each: each.slug)
def test_what_stands_in_the_tiers_way_is_said(
    tiny_model_path: str, vllm_log: pytest.LogCaptureFixture, obstacle: TierObstacle
) -> None:
    check_says(make_offloading(tiny_model_path, **OWN[obstacle]), vllm_log, obstacle)


@pytest.mark.parametrize("obstacle", SHARED, ids=lambda each: each.slug)
def test_what_stands_in_the_way_of_gaps_does_so_too(
    tiny_model_path: str, vllm_log: pytest.LogCaptureFixture, obstacle: Obstacle
) -> None:
    check_says(make_offloading(tiny_model_path, obstacle), vllm_log, obstacle)


def test_a_model_without_costs_is_one_of_them(
    tiny_model_path: str, vllm_log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise InputError("config without layers")

    monkeypatch.setattr("agentcache.engine.blocks.evictor_inputs.read_geometry", fail)
    check_says(make_offloading(tiny_model_path), vllm_log, TierObstacle.COSTS_UNKNOWN)


@pytest.mark.parametrize("policy", ["agentcache", "agentcache-interactive"])
def test_a_steered_tier_has_no_obstacle(tiny_model_path: str, vllm_log: pytest.LogCaptureFixture, policy: str) -> None:
    scheduler = make_offloading(tiny_model_path, policy=policy)
    assert scheduler.tier is not None
    assert read_label(scheduler, "tier_obstacle") == "none"
    assert not [line for line in vllm_log.messages if "not steered" in line]


@pytest.mark.parametrize("options", [{"policy": "lru"}, {"tier": {"enabled": False}}], ids=["policy", "knob"])
def test_what_nobody_asked_for_is_no_obstacle(
    tiny_model_path: str, vllm_log: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    scheduler = make_offloading(tiny_model_path, **options)
    assert scheduler.tier is None
    assert read_label(scheduler, "tier_obstacle") == "none"
    assert not [line for line in vllm_log.messages if "not steered" in line]


@pytest.mark.parametrize("specs", [[FULL], [FULL, replace(FULL, head_size=64)], [FULL, WINDOW]])
def test_a_worker_chooses_as_the_scheduler_does(tiny_model_path: str, specs: list[KVCacheSpec]) -> None:
    """Of layers whose pages differ the scheduler knows one, and each worker all of its own."""
    config = make_offloading(tiny_model_path).vllm_config
    names = [f"layer {number}" for number in range(len(specs))]
    tensors = [KVCacheTensor(64 * FULL.page_size_bytes, [name], 0, FULL.page_size_bytes) for name in names]
    layers = dict(zip(names, specs, strict=True))
    of_one_kind = WINDOW not in specs
    groups = (
        [KVCacheGroupSpec(names, UniformTypeKVCacheSpecs(FULL.block_size, layers))]
        if of_one_kind
        else [KVCacheGroupSpec([name], spec) for name, spec in layers.items()]
    )
    own = KVCacheConfig(64, tensors, groups)
    seen = generate_scheduler_kv_cache_config([own])
    chosen = {type(TierConnector(config, KVConnectorRole.SCHEDULER, each)) for each in (own, seen)}
    assert chosen == {TierConnector if of_one_kind else SimpleCPUOffloadConnector}


def test_vllms_own_is_refused_on_its_cpu_backend(tiny_model_path: str) -> None:
    scheduler = make_offloading(tiny_model_path, **OWN[TierObstacle.KV_EVENTS])
    with pytest.raises(InputError, match=r"^--kv-offloading-size: vLLM's SimpleCPUOffloadConnector does not run "):
        TierConnector(scheduler.vllm_config, KVConnectorRole.WORKER, scheduler.kv_cache_config)


def test_the_documented_obstacles_are_all_there_are() -> None:
    section = DOCUMENTED.read_text().partition("\n### Obstacles of the CPU cache\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE) == [each.slug for each in TierObstacle]
