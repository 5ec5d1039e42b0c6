"""Small models of families, with random weights, whose heads are as large as a GPU's kernels want them.

Every expert has a share in every token: else rounding would choose another one now and then, and move a reply by far.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

COMMON: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "initializer_range": 0.1,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 128}


def _llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**COMMON))


def _qwen3_moe() -> PreTrainedModel:
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**COMMON | EXPERTS | {"head_dim": 128}))


def _gpt_oss() -> PreTrainedModel:
    """A window of two blocks and a bit in every other layer."""
    layers = {"num_hidden_layers": 4, "sliding_window": 69}
    return GptOssForCausalLM(GptOssConfig(**COMMON | layers, num_local_experts=4, num_experts_per_tok=4))


def _deepseek_v2() -> PreTrainedModel:
    """Multi-head latent attention. The first layer has no experts."""
    latents = {"kv_lora_rank": 512, "q_lora_rank": None}
    heads = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    counts = {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 64, "num_hidden_layers": 3}
    experts = {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
    settings = COMMON | EXPERTS | latents | heads | counts | experts
    del settings["num_experts"]
    return DeepseekV2ForCausalLM(DeepseekV2Config(**settings))


def _qwen3_next() -> PreTrainedModel:
    """Three layers with a recurrent state, one with attention. A state outlasts some tens of tokens.

    As transformers makes them at random, most heads would forget their state with the next token.
    """
    attention = {"num_hidden_layers": 4, "head_dim": 256}
    heads = {"linear_num_key_heads": 1, "linear_num_value_heads": 2}
    sizes = {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    config = Qwen3NextConfig(**COMMON | EXPERTS | attention | heads | sizes, shared_expert_intermediate_size=128)
    model = Qwen3NextForCausalLM(config)
    for layer in model.model.layers[:3]:
        layer.linear_attn.A_log.data.fill_(math.log(0.03))
    return model


FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": _llama,
    "qwen3-moe": _qwen3_moe,
    "gpt-oss": _gpt_oss,
    "deepseek-v2": _deepseek_v2,
    "qwen3-next": _qwen3_next,
}


def make_gpu_model(name: str, folder: Path) -> str:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        FAMILIES[name]().to(torch.bfloat16).save_pretrained(folder)
    return str(folder)
