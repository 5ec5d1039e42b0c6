"""Gemma-3n and Gemma-4, whose layers differ in their sizes: beside the model cards, and counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import Gemma3nTextConfig, Gemma4TextConfig

from agentcache.models.geometry import AttentionLayers, Geometry, read_geometry
from agentcache.policy.gpus import GPUS
from agentcache.policy.presets import estimate_step_cost

GEMMA_4_31B: dict[str, Any] = {
    "hidden_size": 5376,
    "intermediate_size": 21_504,
    "num_hidden_layers": 60,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "num_global_key_value_heads": 4,
    "attention_k_eq_v": True,
    "sliding_window": 1024,
    "hidden_size_per_layer_input": 0,
}
GEMMA_4_26B: dict[str, Any] = {
    **GEMMA_4_31B,
    "hidden_size": 2816,
    "intermediate_size": 2112,
    "num_hidden_layers": 30,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_global_key_value_heads": 2,
    "enable_moe_block": True,
    "num_experts": 128,
    "top_k_experts": 8,
    "moe_intermediate_size": 704,
}
GEMMA_4_E2B: dict[str, Any] = {
    "hidden_size": 1536,
    "intermediate_size": 6144,
    "num_hidden_layers": 35,
    "layer_types": ["full_attention" if index % 5 == 4 else "sliding_attention" for index in range(35)],
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "num_kv_shared_layers": 20,
    "use_double_wide_mlp": True,
}


def count_kept_numbers(geometry: Geometry) -> dict[int | None, int]:
    """The numbers that a token leaves in the cache, by how far the layers look that read them."""
    kept: dict[int | None, int] = {}
    for one in geometry.attention:
        if not one.shares_cache:
            kept[one.window] = kept.get(one.window, 0) + one.layers * one.kv_heads * one.head_numbers
    return kept


# In billions, with the embeddings that the head is, without those of each layer.
@pytest.mark.parametrize(
    ("dimensions", "parameters", "active"),
    [(GEMMA_4_31B, 30.7, 30.7), (GEMMA_4_26B, 25.2, 3.8), (GEMMA_4_E2B, 2.3, 2.3)],
    ids=["31B", "26B-A4B", "E2B"],
)
def test_gemma_4_has_the_published_parameters(dimensions: Any, parameters: float, active: float) -> None:
    geometry = read_geometry(Gemma4TextConfig(**dimensions))
    head = geometry.vocabulary * geometry.hidden
    assert (geometry.layer_parameters + head) / 1e9 == pytest.approx(parameters, rel=0.015)
    assert (geometry.active_parameters + head) / 1e9 == pytest.approx(active, rel=0.015)


def test_gemma_4_has_longer_heads_where_it_looks_all_the_way() -> None:
    geometry = read_geometry(Gemma4TextConfig(**GEMMA_4_31B))
    assert geometry.attention == (
        AttentionLayers(50, 1024, pair_products=2 * 32 * 256, kv_heads=16, head_numbers=2 * 256),
        AttentionLayers(10, None, pair_products=2 * 32 * 512, kv_heads=4, head_numbers=2 * 512),
    )
    # Keys and values: 16 heads of 256 in 50 layers, 4 of 512 in 10.
    assert count_kept_numbers(geometry) == {1024: 2 * 50 * 4096, None: 2 * 10 * 2048}
    cost = estimate_step_cost(geometry, GPUS["h200"])
    assert cost.kv_read_s == pytest.approx(2 * 10 * 2048 * 2 / (0.8 * 4.8e12))


def test_layers_that_share_keys_and_values_leave_none() -> None:
    """Of E2B's layers 15 keep keys and values, 12 of them those of a window; the other 20 have no such projections."""
    geometry = read_geometry(Gemma4TextConfig(**GEMMA_4_E2B))
    assert count_kept_numbers(geometry) == {512: 2 * 12 * 256, None: 2 * 3 * 512}
    assert [(one.layers, one.window, one.shares_cache) for one in geometry.attention] == [
        (12, 512, False),
        (3, None, False),
        (16, 512, True),
        (4, None, True),
    ]
    # Queries and output of 8 heads; keys and values of 1.
    attention = 1536 * (28 * 16 * 256 + 7 * 16 * 512 + 12 * 2 * 256 + 3 * 2 * 512)
    mlps = 3 * 1536 * (15 * 6144 + 20 * 12_288)
    # Two norms; the gate, the projection and the source of each layer's own inputs.
    others = 35 * (2 * 1536 + 3 * 1536 * 256)
    assert geometry.layer_parameters == geometry.active_parameters == attention + mlps + others


def test_gemma_3n_has_an_mlp_of_its_own_width_in_each_layer() -> None:
    widths = [8192] * 10 + [16_384] * 25
    geometry = read_geometry(Gemma3nTextConfig(intermediate_size=widths))
    attention = 2048 * 256 * (35 * 16 + 20 * 4)
    # Two norms; each layer's own inputs; a residual of rank 64; projections into and out of 3 more streams.
    others = 35 * (2 * 2048 + 3 * 2048 * 256 + 2 * 2048 * 64) + 6 * 2048 * 2048
    assert geometry.layer_parameters == attention + 3 * 2048 * sum(widths) + others
    assert count_kept_numbers(geometry) == {512: 16 * 2 * 512, None: 4 * 2 * 512}
