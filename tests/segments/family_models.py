"""Small models of several families, with random weights, so that all that differs is how their layers keep tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from live_engine import BLOCK
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    Mamba2Config,
    Mamba2ForCausalLM,
    MiniMaxM2Config,
    MiniMaxM2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

COMMON: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
    "dtype": "float32",
}
WINDOW = 2 * BLOCK + 5


def _gpt_oss(**changes: Any) -> PreTrainedModel:
    geometry = {**COMMON, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW, **changes}
    return GptOssForCausalLM(GptOssConfig(**geometry))


def _gemma() -> PreTrainedModel:
    """Three layers with a window, one without: groups of one layer each."""
    types = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
    config = Gemma3TextConfig(**COMMON, sliding_window=WINDOW, layer_types=types, query_pre_attn_scalar=32)
    return _attend(Gemma3ForCausalLM(config))


def _llama4() -> PreTrainedModel:
    """Every other layer sees its chunk alone."""
    config = Llama4TextConfig(
        **COMMON,
        num_local_experts=4,
        num_experts_per_tok=1,
        intermediate_size_mlp=128,
        attention_chunk_size=4 * BLOCK,
        no_rope_layers=[1, 0, 1, 0],
        interleave_moe_layer_step=2,
    )
    config.architectures = ["Llama4ForCausalLM"]
    return Llama4ForCausalLM(config)


def _mistral() -> PreTrainedModel:
    """All layers have a window."""
    return MistralForCausalLM(MistralConfig(**COMMON, sliding_window=WINDOW))


def _qwen3() -> PreTrainedModel:
    """Queries and keys have a norm of their own."""
    return Qwen3ForCausalLM(Qwen3Config(**COMMON | {"num_hidden_layers": 2}))


def _qwen3_moe() -> PreTrainedModel:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**COMMON | {"num_hidden_layers": 2}, **experts))


def _glm4_moe() -> PreTrainedModel:
    """The first layer has no experts, and half of each head is rotated."""
    layers = {"num_hidden_layers": 2, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    return Glm4MoeForCausalLM(Glm4MoeConfig(**COMMON | layers | experts, use_qk_norm=True))


def _minimax_m2() -> PreTrainedModel:
    """Half of each head is rotated. A softmax chooses the experts: vLLM's CPU backend has no sigmoid for these."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32}
    choice = {"scoring_func": "softmax", "use_routing_bias": True}
    settings = COMMON | {"num_hidden_layers": 2} | experts | choice
    return MiniMaxM2ForCausalLM(MiniMaxM2Config(**settings, rotary_dim=16))


def _gemma_4() -> PreTrainedModel:
    """Heads of the layer without a window are twice as wide, so its blocks have half as many tokens."""
    types = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
    sizes = {"global_head_dim": 64, "hidden_size_per_layer_input": 0}
    return _attend(Gemma4ForCausalLM(Gemma4TextConfig(**COMMON, **sizes, sliding_window=WINDOW, layer_types=types)))


def _attend(model: PreTrainedModel) -> PreTrainedModel:
    # They are the output head, too: else each token would repeat itself, whatever it sees.
    model.get_input_embeddings().weight.data.mul_(0.05)
    # Else what the last layer adds to this token's own, alike for all, decides.
    for layer in model.model.layers:
        layer.post_attention_layernorm.weight.data.add_(4.0)
    return model


def _mamba2() -> PreTrainedModel:
    """No attention at all."""
    sizes = {"num_heads": 2, "head_dim": 64, "state_size": 16, "n_groups": 1, "chunk_size": 32}
    settings = {name: COMMON[name] for name in ("vocab_size", "hidden_size", "initializer_range", "dtype")}
    return _remember(Mamba2ForCausalLM(Mamba2Config(**settings, **sizes, num_hidden_layers=2)))


def _nemotron_h() -> PreTrainedModel:
    """A layer has a state, attention or an MLP. Experts are not among them: vLLM's CPU backend has none of theirs."""
    types = ["linear_attention", "mlp", "full_attention", "mlp", "linear_attention"]
    sizes = {"mamba_num_heads": 2, "mamba_head_dim": 64, "ssm_state_size": 16, "n_groups": 1, "chunk_size": 32}
    settings = COMMON | {"num_hidden_layers": None}
    return _remember(NemotronHForCausalLM(NemotronHConfig(**settings, **sizes, layers_block_type=types)))


def _granite_4() -> PreTrainedModel:
    """Three layers with a state, one with attention, experts in all."""
    types = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
    sizes = {"mamba_n_heads": 2, "mamba_d_head": 64, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 32}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 32}
    config = GraniteMoeHybridConfig(**COMMON | sizes | experts, layer_types=types, attention_multiplier=0.18)
    return _remember(GraniteMoeHybridForCausalLM(config))


def _remember(model: PreTrainedModel) -> PreTrainedModel:
    """Have a state outlast some tens of tokens: at random, most heads would forget it with the next one."""
    for name, weights in model.named_parameters():
        if name.endswith("A_log"):
            weights.data.fill_(math.log(0.03))
    return model


def _qwen3_next() -> PreTrainedModel:
    """Three layers with a recurrent state, one with attention, whose blocks of 64 tokens are as large as a state.

    vLLM's CPU kernels want bfloat16 and states of 128 by 128.
    """
    attention = {"num_key_value_heads": 2, "head_dim": 256, "dtype": "bfloat16"}
    state = {"linear_num_key_heads": 1, "linear_num_value_heads": 1}
    sizes = {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    experts = {"num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
    config = Qwen3NextConfig(**COMMON | attention | state | sizes | experts, shared_expert_intermediate_size=32)
    return Qwen3NextForCausalLM(config).to(torch.bfloat16)


FAMILIES: dict[str, Callable[..., PreTrainedModel]] = {
    "gpt-oss": _gpt_oss,
    "gemma": _gemma,
    "llama-4": _llama4,
    "mistral": _mistral,
    "qwen3": _qwen3,
    "qwen3-moe": _qwen3_moe,
    "qwen3-next": _qwen3_next,
    "glm4-moe": _glm4_moe,
    "minimax-m2": _minimax_m2,
    "gemma-4": _gemma_4,
    "mamba2": _mamba2,
    "nemotron-h": _nemotron_h,
    "granite-4": _granite_4,
}


def make_model(name: str, folder: Path, **changes: Any) -> str:
    """`changes` are to gpt-oss's geometry."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        FAMILIES[name](**changes).save_pretrained(folder)
    return str(folder)
