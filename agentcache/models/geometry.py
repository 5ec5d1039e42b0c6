"""What decides a model's speed, read from its Hugging Face config: parameters a token meets, attention, its cache."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from agentcache.errors import InputError

# How far back a layer of this type looks, by the config's name for it. A layer of any other type looks all the way.
_WINDOWS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
# How many experts a layer has, by the config's name for it.
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")


@dataclass(frozen=True, slots=True)
class AttentionLayers:
    """Layers that attend alike.

    `window`: the most tokens that one attends to, itself among them; None for all before it. `pair_products`:
    multiply-adds for a pair of query and key in one layer. A token leaves `kv_heads` times `head_numbers` numbers in
    one layer's cache.
    """

    layers: int
    window: int | None
    pair_products: int
    kv_heads: int
    head_numbers: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """A decoder's dimensions, as far as they decide what a step takes.

    `layer_parameters`: of all layers. `active_parameters`: those that one token is multiplied with, fewer where experts
    are chosen. The embeddings are in neither.
    """

    hidden: int
    layers: int
    layer_parameters: int
    active_parameters: int
    attention: tuple[AttentionLayers, ...]
    # A prompt's cost does not depend on it: logits are made of the last token alone.
    vocabulary: int = field(compare=False)


def read_geometry(config: Any) -> Geometry:
    """Read a text model's config: dense or mixture of experts, with grouped or latent attention, windowed or not.

    Chunked attention counts as a window of a chunk, which it has at a chunk's end; gated MLPs are assumed. Raises
    InputError naming the field that is missing.
    """
    layers, hidden = _read(config, "num_hidden_layers"), _read(config, "hidden_size")
    projections, pair_products, kv_heads, head_numbers = _read_attention(config, hidden)
    active, stored = _read_mlps(config, layers)
    # Two norms a layer.
    others = layers * (projections + 2 * hidden)
    return Geometry(
        hidden=hidden,
        layers=layers,
        layer_parameters=others + 3 * hidden * stored,
        active_parameters=others + 3 * hidden * active,
        attention=tuple(
            AttentionLayers(count, window, pair_products, kv_heads, head_numbers)
            for window, count in _count_windows(config, layers).items()
        ),
        vocabulary=_read(config, "vocab_size"),
    )


def _read(config: Any, *names: str) -> int:
    """Read the first of the fields that is set."""
    for name in names:
        if (value := getattr(config, name, None)) is not None:
            return int(value)
    raise InputError(f"the model's config ({type(config).__name__}) has no {' or '.join(names)}")


def _read_attention(config: Any, hidden: int) -> tuple[int, int, int, int]:
    """Return a layer's parameters, its products a pair of query and key, and KV heads and numbers a head it caches."""
    heads = _read(config, "num_attention_heads")
    if getattr(config, "kv_lora_rank", None) is not None:
        return _read_latent_attention(config, hidden, heads)
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    return 2 * hidden * head_dim * (heads + kv_heads), 2 * heads * head_dim, kv_heads, 2 * head_dim


def _read_latent_attention(config: Any, hidden: int, heads: int) -> tuple[int, int, int, int]:
    """Count DeepSeek's MLA as a prefill computes it: keys and values of each head made from the latent ones."""
    latent, rotated = _read(config, "kv_lora_rank"), _read(config, "qk_rope_head_dim")
    key, value = _read(config, "qk_nope_head_dim") + rotated, _read(config, "v_head_dim")
    query_rank = getattr(config, "q_lora_rank", None)
    queries = query_rank * (hidden + heads * key) if query_rank else hidden * heads * key
    keys_and_values = hidden * (latent + rotated) + latent * heads * (key - rotated + value)
    return queries + keys_and_values + heads * value * hidden, heads * (key + value), 1, latent + rotated


def _read_mlps(config: Any, layers: int) -> tuple[int, int]:
    """Return the widths of all layers' MLPs added up: those that a token meets, and those in memory."""
    experts = next((count for name in _EXPERTS if (count := getattr(config, name, None))), 0)
    sparse = _count_sparse_layers(config, layers) if experts else 0
    dense = layers - sparse
    width = dense * _read(config, "intermediate_size_mlp", "intermediate_size") if dense else 0
    if not sparse:
        return width, width
    expert = _read(config, "moe_intermediate_size", "intermediate_size")
    shared = _read_shared_width(config, expert)
    chosen = _read(config, "num_experts_per_tok", "top_k_experts", "top_k")
    return width + sparse * (shared + chosen * expert), width + sparse * (shared + experts * expert)


def _count_sparse_layers(config: Any, layers: int) -> int:
    """Count the layers that choose experts."""
    first = getattr(config, "first_k_dense_replace", None) or 0
    step = getattr(config, "interleave_moe_layer_step", None) or getattr(config, "decoder_sparse_step", None) or 1
    dense = getattr(config, "mlp_only_layers", None) or ()
    return sum(index >= first and (index + 1) % step == 0 and index not in dense for index in range(layers))


def _read_shared_width(config: Any, expert: int) -> int:
    """Return the width of what every token meets beside the experts chosen for it, in one layer."""
    if (width := getattr(config, "shared_expert_intermediate_size", None)) is not None:
        return int(width)
    if getattr(config, "intermediate_size_mlp", None) is not None:
        # Llama 4 has one shared expert, which no field tells.
        return expert
    return expert * (getattr(config, "n_shared_experts", None) or getattr(config, "num_shared_experts", None) or 0)


def _count_windows(config: Any, layers: int) -> dict[int | None, int]:
    """Count the layers by how far back they look."""
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    types = getattr(config, "layer_types", None)
    if types is None:
        return {window: layers}
    return Counter(_read(config, _WINDOWS[one]) if one in _WINDOWS else None for one in types)
