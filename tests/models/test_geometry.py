"""Geometries read from Hugging Face configs, beside what the models' authors publish."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import CONFIG_MAPPING, LlamaConfig

from agentcache.errors import InputError
from agentcache.models.geometry import AttentionLayers, Geometry, read_geometry
from agentcache.models.shapes import SHAPES, SMALL, Shape

# Dimensions: config.json of each. Parameters in billions, all and active: the authors' model cards.
QWEN3_30B = {
    "hidden_size": 2048,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151_936,
}
MIXTRAL_8X7B = {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 14_336, "vocab_size": 32_000}
DEEPSEEK_V3 = {
    "hidden_size": 7168,
    "intermediate_size": 18_432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129_280,
}
GPT_OSS_120B = {
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
    "vocab_size": 201_088,
}
GRANITE_4_H_SMALL = {
    "hidden_size": 4096,
    "intermediate_size": 768,
    "shared_intermediate_size": 1536,
    "num_local_experts": 72,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 40,
    "layer_types": ["attention" if index % 10 == 5 else "mamba" for index in range(40)],
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "vocab_size": 100_352,
}
NEMOTRON_3_NANO = {
    "hidden_size": 2688,
    "layers_block_type": [
        {"M": "mamba", "E": "moe", "*": "attention"}[one]
        for one in "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
    ],
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "vocab_size": 131_072,
}
LLAMA_4_SCOUT = {"num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1}
LLAMA_4_MAVERICK = {"num_local_experts": 128, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2}


def read(kind: str, **values: Any) -> Geometry:
    return read_geometry(CONFIG_MAPPING[kind](**values))


@pytest.mark.parametrize(
    ("kind", "dimensions", "parameters", "active"),
    [
        ("qwen3_moe", QWEN3_30B, 30.5, 3.3),
        ("mixtral", MIXTRAL_8X7B, 46.7, 12.9),
        ("deepseek_v3", DEEPSEEK_V3, 671, 37),
        ("llama4_text", LLAMA_4_SCOUT, 109, 17),
        ("llama4_text", LLAMA_4_MAVERICK, 400, 17),
        # Its defaults are those of Jamba-v0.1.
        ("jamba", {}, 51.6, 12.1),
        ("granitemoehybrid", GRANITE_4_H_SMALL, 32.2, 9.4),
        ("nemotron_h", NEMOTRON_3_NANO, 31.6, 3.6),
    ],
)
def test_parameters_are_the_published_ones(
    kind: str, dimensions: dict[str, Any], parameters: float, active: float
) -> None:
    geometry = read(kind, **dimensions)
    tables = 2 * geometry.vocabulary * geometry.hidden
    assert (geometry.layer_parameters + tables) / 1e9 == pytest.approx(parameters, rel=0.02)
    assert (geometry.active_parameters + tables) / 1e9 == pytest.approx(active, rel=0.03)


def test_active_parameters_without_the_embeddings() -> None:
    """As gpt-oss counts them: 116.8 billion, of which 5.1 are active, with the output head alone."""
    geometry = read("gpt_oss", **GPT_OSS_120B)
    head = geometry.vocabulary * geometry.hidden
    assert (geometry.layer_parameters + 2 * head) / 1e9 == pytest.approx(116.8, rel=0.01)
    assert (geometry.active_parameters + head) / 1e9 == pytest.approx(5.1, rel=0.01)


@pytest.mark.parametrize("shape", [shape for shape in (SHAPES | SMALL).values() if shape.model_type == "llama"])
def test_a_llama_reads_as_its_shape(shape: Shape) -> None:
    config = LlamaConfig(**shape.as_config(end_of_turn=1, padding=2, dtype="float32"))
    geometry = read_geometry(config)
    assert geometry == shape.geometry
    assert geometry.vocabulary == shape.vocabulary


def test_layers_are_told_apart_by_how_far_they_look() -> None:
    def windows(kind: str, **values: Any) -> dict[int | None, int]:
        return {layers.window: layers.layers for layers in read(kind, **values).attention}

    assert windows("gpt_oss", **GPT_OSS_120B) == {128: 18, None: 18}
    assert windows("llama4_text", attention_chunk_size=8192, num_hidden_layers=48) == {8192: 36, None: 12}
    assert windows("mistral", sliding_window=4096, num_hidden_layers=32) == {4096: 32}
    assert windows("mistral", sliding_window=None, num_hidden_layers=32) == {None: 32}
    assert windows("qwen2", use_sliding_window=False, sliding_window=4096, num_hidden_layers=28) == {None: 28}


def test_latent_attention_keeps_one_vector_a_token() -> None:
    """DeepSeek-V3 caches 512 latent numbers and 64 rotated ones; a pair costs 192 products for its key, 128 for its
    value, in each of 128 heads."""
    assert read("deepseek_v3", **DEEPSEEK_V3).attention == (
        AttentionLayers(61, None, pair_products=128 * (192 + 128), kv_heads=1, head_numbers=576),
    )


@pytest.mark.parametrize("field", ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"])
def test_a_missing_field_is_named(field: str) -> None:
    values = {name: value for name, value in GPT_OSS_120B.items() if name != field}
    with pytest.raises(InputError, match=rf"the model's config \(SimpleNamespace\) has no {field}$"):
        read_geometry(SimpleNamespace(**values))


def test_a_missing_number_of_chosen_experts_is_an_error() -> None:
    values = {**GPT_OSS_120B, "num_experts_per_tok": None}
    with pytest.raises(InputError, match=r"no num_experts_per_tok or top_k_experts or top_k$"):
        read_geometry(SimpleNamespace(**values))
