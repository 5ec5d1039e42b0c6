"""The models of tests/gpu/test_published_geometries.py: published ones with fewer layers, which vLLM takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from crowd import SYSTEM_TOKENS
from engine_pair import SERVED
from family_checks import Family
from live_engine import BLOCK
from published_geometries import FAMILIES, LAYERS, find_options, shorten, write_config
from random_weights import register_random_weights
from transformers import AutoConfig
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs

from agentcache.models.geometry import Geometry, read_geometry
from agentcache.models.shapes import SHAPES
from agentcache.run.layer_groups import make_layer_groups

each_model = pytest.mark.parametrize("name", LAYERS)
GROUPS = {
    "qwen3-30b-a3b": ["FullAttentionSpec"],
    "gpt-oss-20b": ["SlidingWindowSpec", "FullAttentionSpec"],
    "deepseek-v2-lite": ["MLAAttentionSpec"],
    "qwen3-next-80b-a3b": [*["MambaSpec"] * 3, "FullAttentionSpec"],
}


def count_layers(geometry: Geometry) -> list[int]:
    recurrent = [geometry.recurrent.layers] if geometry.recurrent else []
    return [*(each.layers for each in geometry.attention), *recurrent]


@each_model
def test_all_but_the_number_of_layers_is_published(name: str, tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(write_config(shorten(name), tmp_path))
    fewer = {"num_hidden_layers", "layer_types"}
    for field, value in SHAPES[name].fields.items():
        if field not in fewer:
            assert getattr(config, field) == value, field
    short, whole = read_geometry(config), SHAPES[name].geometry
    kinds = zip(count_layers(short), count_layers(whole), strict=True)
    assert {layers / of_whole for layers, of_whole in kinds} == {short.layers / whole.layers}
    assert min(count_layers(short)) >= 2
    for one, other in zip(short.attention, whole.attention, strict=True):
        assert replace(one, layers=other.layers) == other
    if short.recurrent and whole.recurrent:
        assert replace(short.recurrent, layers=whole.recurrent.layers) == whole.recurrent


@pytest.mark.engine
@pytest.mark.parametrize("case", FAMILIES)
def test_vllm_takes_the_shortened_model(case: str, tmp_path: Path) -> None:
    family = FAMILIES[case]
    config = configure(family, tmp_path)
    groups = make_layer_groups(config)
    assert [type(group.kv_cache_spec).__name__ for group in groups] == GROUPS[family.model]
    (layers,) = {len(group.layer_names) for group in groups}
    # vLLM asks for a request of the full length before it hears how many blocks the test wants.
    needed = layers * sum(group.kv_cache_spec.max_memory_usage_bytes(config) for group in groups)
    assert needed <= family.options.get("kv_cache_memory_bytes", 64 * 2**20)
    if family.kind == "states":
        block_size = config.cache_config.block_size
        # A block is as long as a state is large: in bfloat16, as on GPUs, and in float32, as on some CPUs.
        assert block_size in (544, 1056)
        assert block_size <= config.scheduler_config.max_num_batched_tokens
        # The shortest first prompt has three blocks on a GPU, as with the small model.
        assert family.scale * (SYSTEM_TOKENS + 125) > 3 * 544


def configure(family: Family, folder: Path) -> VllmConfig:
    register_random_weights()
    options = {"block_size": BLOCK, "max_num_seqs": 8, **SERVED, **find_options(family)}
    return EngineArgs(model=write_config(shorten(family.model), folder), **options).create_engine_config()
