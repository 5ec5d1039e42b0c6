"""Describes a model's shape, and lists published ones beside the Llamas by what their config.json says.

Numbers that no cache and no step depends on (rope, norms, dropout) keep the defaults of the config's class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType, SimpleNamespace
from typing import Any

from agentcache.models.geometry import Geometry, read_geometry

# Nemotron-H's own way to write its layers: M a Mamba-2 layer, - an MLP, * attention.
_NEMOTRON_LAYERS = {"M": "mamba", "-": "mlp", "*": "attention"}


@dataclass(frozen=True)
class Shape:
    """`fields` are of the config's class, named by `model_type`. `source`: whose config.json they are from."""

    architecture: str
    model_type: str
    source: str
    fields: Mapping[str, Any]

    # Each scheduler compares its model with all of these, and to read one takes a millisecond.
    @cached_property
    def geometry(self) -> Geometry:
        """Return what decides its speed."""
        return read_geometry(SimpleNamespace(**self.fields))

    @property
    def hidden(self) -> int:
        """The width of the hidden states."""
        return int(self.fields["hidden_size"])

    @property
    def heads(self) -> int:
        """The attention heads of a layer."""
        return int(self.fields["num_attention_heads"])

    @property
    def vocabulary(self) -> int:
        """The rows of the table of embeddings."""
        return int(self.fields["vocab_size"])

    @property
    def max_tokens(self) -> int:
        """The longest context."""
        return int(self.fields["max_position_embeddings"])

    @property
    def options(self) -> tuple[str, ...]:
        """What vLLM needs beside the config, whose class may not ask for the type of its states."""
        state_dtype = self.fields.get("mamba_ssm_dtype")
        return () if state_dtype is None else ("--mamba-ssm-cache-dtype", state_dtype)

    @property
    def tied_embeddings(self) -> bool:
        """Whether the output head is the table of embeddings."""
        return bool(self.fields.get("tie_word_embeddings", False))

    def as_config(self, *, end_of_turn: int, padding: int, dtype: str) -> dict[str, Any]:
        """Return the keyword arguments of the config's class."""
        special = {"bos_token_id": None, "eos_token_id": end_of_turn, "pad_token_id": padding}
        return {"architectures": [self.architecture], **self.fields, **special, "dtype": dtype}


def make_shape(architecture: str, model_type: str, source: str, **fields: Any) -> Shape:
    """Make a shape of the fields that its config sets."""
    return Shape(architecture, model_type, source, MappingProxyType(fields))


def _repeat(pattern: tuple[str, ...], layers: int) -> list[str]:
    return [pattern[index % len(pattern)] for index in range(layers)]


def _as_one_sparse_layer(*, layers: int, width: int) -> dict[str, Any]:
    """Return the fields of a dense model for vLLM's Qwen3-Next, which wants experts in one layer: it has them all used.

    Qwen3.5's own code in vLLM loads its image processor, and so torchvision, even for text alone.
    """
    experts = 8
    return {
        "num_experts": experts,
        "num_experts_per_tok": experts,
        "moe_intermediate_size": width // experts,
        "shared_expert_intermediate_size": 0,
        "mlp_only_layers": list(range(1, layers)),
    }


def _make_gpt_oss(source: str, layers: int, experts: int) -> Shape:
    return make_shape(
        "GptOssForCausalLM",
        "gpt_oss",
        source,
        hidden_size=2880,
        intermediate_size=2880,
        num_hidden_layers=layers,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=64,
        sliding_window=128,
        layer_types=_repeat(("sliding_attention", "full_attention"), layers),
        num_local_experts=experts,
        num_experts_per_tok=4,
        vocab_size=201_088,
        max_position_embeddings=131_072,
    )


def _make_deepseek(source: str, *, heads: int, experts: int, dense: int, vocabulary: int) -> Shape:
    return make_shape(
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        source,
        hidden_size=7168,
        intermediate_size=18_432,
        moe_intermediate_size=2048,
        num_hidden_layers=61,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        n_routed_experts=experts,
        n_shared_experts=1,
        num_experts_per_tok=8,
        first_k_dense_replace=dense,
        vocab_size=vocabulary,
        max_position_embeddings=131_072,
    )


PUBLISHED = {
    "qwen3-30b-a3b": make_shape(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        "Qwen/Qwen3-30B-A3B-Instruct-2507",
        hidden_size=2048,
        intermediate_size=6144,
        moe_intermediate_size=768,
        num_hidden_layers=48,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        vocab_size=151_936,
        max_position_embeddings=262_144,
    ),
    "qwen3-next-80b-a3b": make_shape(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        hidden_size=2048,
        intermediate_size=5120,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
        num_hidden_layers=48,
        num_attention_heads=16,
        num_key_value_heads=2,
        head_dim=256,
        layer_types=_repeat((*["linear_attention"] * 3, "full_attention"), 48),
        linear_conv_kernel_dim=4,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        num_experts=512,
        num_experts_per_tok=10,
        vocab_size=151_936,
        max_position_embeddings=262_144,
    ),
    "qwen3.5-9b": make_shape(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        "Qwen/Qwen3.5-9B",
        hidden_size=4096,
        intermediate_size=12_288,
        num_hidden_layers=32,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=256,
        attn_output_gate=True,
        layer_types=_repeat((*["linear_attention"] * 3, "full_attention"), 32),
        linear_conv_kernel_dim=4,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        mamba_ssm_dtype="float32",
        **_as_one_sparse_layer(layers=32, width=12_288),
        vocab_size=248_320,
        max_position_embeddings=262_144,
    ),
    "gpt-oss-20b": _make_gpt_oss("openai/gpt-oss-20b", layers=24, experts=32),
    "gpt-oss-120b": _make_gpt_oss("openai/gpt-oss-120b", layers=36, experts=128),
    "gemma-3-12b": make_shape(
        "Gemma3ForCausalLM",
        "gemma3_text",
        "google/gemma-3-12b-it",
        hidden_size=3840,
        intermediate_size=15_360,
        num_hidden_layers=48,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=256,
        sliding_window=1024,
        layer_types=_repeat((*["sliding_attention"] * 5, "full_attention"), 48),
        query_pre_attn_scalar=256,
        tie_word_embeddings=True,
        vocab_size=262_208,
        max_position_embeddings=131_072,
    ),
    "glm-4.5-air": make_shape(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        "zai-org/GLM-4.5-Air",
        hidden_size=4096,
        intermediate_size=10_944,
        moe_intermediate_size=1408,
        num_hidden_layers=46,
        num_attention_heads=96,
        num_key_value_heads=8,
        head_dim=128,
        n_routed_experts=128,
        n_shared_experts=1,
        num_experts_per_tok=8,
        first_k_dense_replace=1,
        vocab_size=151_552,
        max_position_embeddings=131_072,
    ),
    "minimax-m2": make_shape(
        "MiniMaxM2ForCausalLM",
        "minimax_m2",
        "MiniMaxAI/MiniMax-M2",
        hidden_size=3072,
        intermediate_size=1536,
        num_hidden_layers=62,
        num_attention_heads=48,
        num_key_value_heads=8,
        head_dim=128,
        num_local_experts=256,
        num_experts_per_tok=8,
        vocab_size=200_064,
        max_position_embeddings=196_608,
    ),
    # Their configs name 163,840 and 131,072 tokens with yarn; the shorter is what both are trained for.
    "deepseek-v3": _make_deepseek("deepseek-ai/DeepSeek-V3", heads=128, experts=256, dense=3, vocabulary=129_280),
    "kimi-k2": _make_deepseek("moonshotai/Kimi-K2-Instruct", heads=64, experts=384, dense=1, vocabulary=163_840),
    "deepseek-v2-lite": make_shape(
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        "deepseek-ai/DeepSeek-V2-Lite-Chat",
        hidden_size=2048,
        intermediate_size=10_944,
        moe_intermediate_size=1408,
        num_hidden_layers=27,
        num_attention_heads=16,
        num_key_value_heads=16,
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        n_routed_experts=64,
        n_shared_experts=2,
        num_experts_per_tok=6,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        vocab_size=102_400,
        # Published with 163,840 by yarn; it is trained for fewer.
        max_position_embeddings=32_768,
    ),
    "nemotron-h-8b": make_shape(
        "NemotronHForCausalLM",
        "nemotron_h",
        "nvidia/Nemotron-H-8B-Base-8K",
        hidden_size=4096,
        intermediate_size=21_504,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        layers_block_type=[_NEMOTRON_LAYERS[one] for one in "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"],
        ssm_state_size=128,
        mamba_num_heads=128,
        mamba_head_dim=64,
        n_groups=8,
        conv_kernel=4,
        mamba_ssm_cache_dtype="float32",
        mlp_hidden_act="relu2",
        vocab_size=131_072,
        # Published with 8,192, which is too little for agents: its larger sisters have 131,072.
        max_position_embeddings=131_072,
    ),
    "llama-4-scout": make_shape(
        "Llama4ForCausalLM",
        "llama4_text",
        "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        hidden_size=5120,
        intermediate_size=8192,
        intermediate_size_mlp=16_384,
        num_hidden_layers=48,
        num_attention_heads=40,
        num_key_value_heads=8,
        head_dim=128,
        attention_chunk_size=8192,
        layer_types=_repeat((*["chunked_attention"] * 3, "full_attention"), 48),
        num_local_experts=16,
        num_experts_per_tok=1,
        interleave_moe_layer_step=1,
        vocab_size=202_048,
        max_position_embeddings=10_485_760,
    ),
}
