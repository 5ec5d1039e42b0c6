"""Models with the layers of published ones and random weights: as wide, with as many heads, experts and states.

They have fewer layers. Layers of a kind are alike, each kind is there at least twice (but DeepSeek's one dense layer,
which keeps the same KV as the others), and the KV cache has the groups that the whole model's has.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from family_checks import DRAFTS, FEW_TOKENS, Family
from random_weights import LOAD_FORMAT
from transformers import AutoConfig

from agentcache.models.shapes import SHAPES, Shape
from agentcache.policy.presets import count_parameters

# Qwen3-Next has one layer with attention among four.
LAYERS = {"qwen3-30b-a3b": 4, "gpt-oss-20b": 4, "deepseek-v2-lite": 4, "qwen3-next-80b-a3b": 8}

# For each engine beside its weights: CUDA's context, graphs, what kernels and steps need.
BESIDE_WEIGHTS_GIB = 2.0

STATES = {
    "max_model_len": 8192,
    "max_num_batched_tokens": 2048,
    "kv_cache_memory_bytes": 2**28,
    # vLLM prefers FlashInfer's kernel, which need not be there.
    "gdn_prefill_backend": "triton",
}

# By the model's name, with what else is special.
FAMILIES = {
    "qwen3-30b-a3b": Family("qwen3-30b-a3b", 37),
    "qwen3-30b-a3b, ngram": Family("qwen3-30b-a3b", 37, options={"speculative_config": DRAFTS}, sampling=FEW_TOKENS),
    "gpt-oss-20b": Family("gpt-oss-20b", 60, "windows"),
    "gpt-oss-20b, ngram": Family(
        "gpt-oss-20b", 60, "windows", options={"speculative_config": DRAFTS}, sampling=FEW_TOKENS
    ),
    # FlashMLA has no other block.
    "deepseek-v2-lite": Family("deepseek-v2-lite", 19, options={"block_size": 64}),
    "deepseek-v2-lite, ngram": Family(
        "deepseek-v2-lite", 19, options={"block_size": 64, "speculative_config": DRAFTS}, sampling=FEW_TOKENS
    ),
    # A block is as large as a state, which has the bytes of 544 tokens, and a step takes one at least.
    "qwen3-next-80b-a3b": Family("qwen3-next-80b-a3b", 40, "states", STATES, scale=11),
    "qwen3-next-80b-a3b, ngram": Family(
        "qwen3-next-80b-a3b", 40, "states", {**STATES, "speculative_config": DRAFTS}, sampling=FEW_TOKENS, scale=11
    ),
}


def shorten(name: str) -> Shape:
    """Return the published shape with its first layers alone."""
    shape, layers = SHAPES[name], LAYERS[name]
    fields: dict[str, Any] = {**shape.fields, "num_hidden_layers": layers}
    if "layer_types" in fields:
        fields["layer_types"] = fields["layer_types"][:layers]
    return replace(shape, fields=MappingProxyType(fields))


def write_config(shape: Shape, folder: Path) -> str:
    """Write a model without weights and tokenizer; its tokens have no meaning, so that no reply ends early."""
    fields = {"architectures": [shape.architecture], **shape.fields, "eos_token_id": None, "dtype": "bfloat16"}
    AutoConfig.for_model(shape.model_type, **fields).save_pretrained(folder)
    return str(folder)


def find_options(family: Family) -> dict[str, Any]:
    """Return the engines' options. vLLM wants so much of the GPU free when an engine starts, others being there."""
    return {"load_format": LOAD_FORMAT, "gpu_memory_utilization": 0.02, **family.engine_options}


def count_pair_gib(family: Family) -> float:
    """Count what two engines take: their weights in bfloat16, and what is beside them."""
    return 2 * (2 * count_parameters(shorten(family.model)) / 2**30 + BESIDE_WEIGHTS_GIB)
