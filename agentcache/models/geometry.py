"""What decides a model's speed, read from its Hugging Face config: parameters a token meets, attention, its cache."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from agentcache.errors import InputError

# How far back a layer of this type looks, by the config's name for it. A layer of any other type looks all the way.
_WINDOWS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
# Layers that keep a state.
_RECURRENT = ("linear_attention", "mamba")
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
class RecurrentLayers:
    """Layers that keep a state of a fixed size in place of keys and values.

    `state_numbers`: of one layer's state, kept in 32 bits; each token decays it, adds to it and reads it.
    `convolution_numbers`: the inputs that the convolution in front of it looks back on, in the model's own type.
    """

    layers: int
    state_numbers: int
    convolution_numbers: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """A decoder's dimensions, as far as they decide what a step takes.

    `layer_parameters`: of all layers. `active_parameters`: those that one token is multiplied with, fewer where experts
    are chosen. The embeddings are in neither. `recurrent`: None for a model that attends in every layer.
    """

    hidden: int
    layers: int
    layer_parameters: int
    active_parameters: int
    attention: tuple[AttentionLayers, ...]
    # A prompt's cost does not depend on it: logits are made of the last token alone.
    vocabulary: int = field(compare=False)
    recurrent: RecurrentLayers | None = None


def read_geometry(config: Any) -> Geometry:
    """Read a text model's config: dense or mixture of experts; grouped, latent, windowed or linear attention, Mamba-2.

    Chunked attention counts as a window of a chunk, which it has at a chunk's end; gated MLPs are assumed but for
    squared ReLUs. Raises InputError naming the field that is missing.
    """
    types = read_layer_types(config)
    layers = _read(config, "num_hidden_layers") if types is None else len(types)
    hidden = _read(config, "hidden_size")
    projections, pair_products, kv_heads, head_numbers = _read_attention(config, hidden)
    windows = _count_windows(config, types, layers)
    recurrent, recurrent_parameters = _read_recurrent(config, types, hidden)
    active, stored = _read_mlps(config, layers if types is None else len(types) - types.count("mamba"))
    if types is not None and "mlp" in types:
        # Each is a layer of its own there.
        width = types.count("mlp") * _read(config, "intermediate_size")
        active = stored = width * 2 // 3 if getattr(config, "mlp_hidden_act", "") == "relu2" else width
    # Two norms a layer.
    others = windows.total() * projections + recurrent_parameters + layers * 2 * hidden
    return Geometry(
        hidden=hidden,
        layers=layers,
        layer_parameters=others + 3 * hidden * stored,
        active_parameters=others + 3 * hidden * active,
        attention=tuple(
            AttentionLayers(count, window, pair_products, kv_heads, head_numbers) for window, count in windows.items()
        ),
        vocabulary=_read(config, "vocab_size"),
        recurrent=recurrent,
    )


def read_layer_types(config: Any) -> list[str] | None:
    """Return what each layer is, by the names of transformers; None if all attend alike."""
    types = getattr(config, "layers_block_type", None) or getattr(config, "layer_types", None)
    return None if types is None else list(types)


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
    # Queries and output, keys and values; Qwen3.5 gates the output as well.
    gates = heads if getattr(config, "attn_output_gate", False) else 0
    return hidden * head_dim * (2 * heads + 2 * kv_heads + gates), 2 * heads * head_dim, kv_heads, 2 * head_dim


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


def _count_windows(config: Any, types: list[str] | None, layers: int) -> Counter[int | None]:
    """Count the layers that attend by how far back they look."""
    if types is None:
        window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
        return Counter({window: layers})
    attending = [one for one in types if one == "attention" or one.endswith("_attention")]
    return Counter(
        _read(config, _WINDOWS[one]) if one in _WINDOWS else None for one in attending if one not in _RECURRENT
    )


def _read_recurrent(config: Any, types: list[str] | None, hidden: int) -> tuple[RecurrentLayers | None, int]:
    """Return the layers that keep a state, and the parameters of all of them."""
    layers = sum(one in _RECURRENT for one in types or ())
    if not layers:
        return None, 0
    if getattr(config, "linear_num_value_heads", None) is not None:
        state, convolved, projections = _read_delta_net(config, hidden)
    else:
        state, convolved, projections = _read_mamba(config, hidden)
    taps = _read(config, "linear_conv_kernel_dim", "conv_kernel", "mamba_d_conv")
    return RecurrentLayers(layers, state, (taps - 1) * convolved), layers * (projections + taps * convolved)


def _read_delta_net(config: Any, hidden: int) -> tuple[int, int, int]:
    """Return the numbers of a gated delta net's state, the width of its convolution, and its projections."""
    heads, key_dim = _read(config, "linear_num_value_heads"), _read(config, "linear_key_head_dim")
    keys = _read(config, "linear_num_key_heads") * key_dim
    values = heads * _read(config, "linear_value_head_dim")
    # Queries, keys, values and their gate; two gates a head; the output.
    return values * key_dim, 2 * keys + values, hidden * (2 * keys + 2 * values + 2 * heads + values)


def _read_mamba(config: Any, hidden: int) -> tuple[int, int, int]:
    """Return the numbers of a Mamba-2 layer's state, the width of its convolution, and its projections."""
    heads, state = _read(config, "mamba_num_heads"), _read(config, "ssm_state_size")
    inner = heads * _read(config, "mamba_head_dim")
    convolved = inner + 2 * _read(config, "n_groups") * state
    # The convolution's input, the gate, a step size a head; the output.
    return inner * state, convolved, hidden * (convolved + inner + heads + inner)
