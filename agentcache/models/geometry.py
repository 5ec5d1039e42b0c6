"""Reads what decides a model's speed from its Hugging Face config: parameters a token meets, attention, its cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentcache.models.config_fields import ConfigFields, shares_cache
from agentcache.models.recurrent_layers import RECURRENT, RecurrentLayers, read_recurrent

# Layers that are an MLP and nothing else. Where there are none, every layer has one.
_ALONE = ("mlp", "moe")
# How many experts a layer has, by the config's name for it.
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")


def read_mlps(layers: Sequence[ConfigFields], types: Sequence[str], hidden: int) -> tuple[int, int]:
    """Return the parameters of all layers' MLPs: those that a token meets, and those in memory."""
    alone = any(one in _ALONE for one in types)
    read = [
        _read_sparse(layer, hidden) if _is_sparse(layer, one) else [_read_dense(layer, hidden)] * 2
        for layer, one in zip(layers, types, strict=True)
        if not alone or one in _ALONE
    ]
    return sum(active for active, _ in read), sum(stored for _, stored in read)


def _is_sparse(layer: ConfigFields, kind: str) -> bool:
    """Tell whether the layer chooses experts."""
    if kind in _ALONE or not layer.find_number(*_EXPERTS):
        return kind == "moe"
    if (period := layer.find_number("expert_layer_period")) is not None:
        return layer.index % (period or 1) == layer.find_number("expert_layer_offset")
    if (first := layer.find_number("first_k_dense_replace")) is None:
        if kinds := layer.find_list("mlp_layer_types"):
            return kinds[layer.index : layer.index + 1] != ["dense"]
        first = 0
    step = layer.find_number("interleave_moe_layer_step") or layer.find_number("decoder_sparse_step") or 1
    dense = layer.find_list("mlp_only_layers") or ()
    return layer.index >= first and (layer.index + 1) % step == 0 and layer.index not in dense


def _count_matrices(layer: ConfigFields) -> int:
    """Count an MLP's matrices: all gate what they compute but those with squared ReLUs."""
    return 2 if layer.find("mlp_hidden_act") == "relu2" else 3


def _read_dense(layer: ConfigFields, hidden: int) -> int:
    # Granite's dense layers keep the name of what its sparse ones share.
    width = layer.find_number("intermediate_size_mlp", "shared_intermediate_size")
    width = width or layer.read_number("intermediate_size")
    if layer.find("use_double_wide_mlp") and shares_cache(layer):
        width *= 2
    return _count_matrices(layer) * hidden * width


def _read_sparse(layer: ConfigFields, hidden: int) -> list[int]:
    experts = layer.read_number(*_EXPERTS)
    expert = layer.read_number("moe_intermediate_size", "intermediate_size")
    chosen = layer.read_number("num_experts_per_tok", "top_k_experts", "top_k")
    shared = _count_matrices(layer) * hidden * _read_shared_width(layer, expert)
    inner = hidden
    if (latent := layer.find_number("moe_latent_size")) is not None:
        # Nemotron's experts work on narrower states, which are made for all of them at once.
        inner, shared = latent, shared + 2 * hidden * latent
    return [shared + each * _count_matrices(layer) * inner * expert for each in (chosen, experts)]


def _read_shared_width(layer: ConfigFields, expert: int) -> int:
    """Return the width of what every token meets beside the experts chosen for it."""
    if layer.find("enable_moe_block"):
        # Gemma-4 adds its dense MLP to what the experts give.
        return layer.read_number("intermediate_size")
    width = layer.find_number("shared_expert_intermediate_size", "shared_intermediate_size")
    if width is not None:
        return width
    if layer.find("intermediate_size_mlp") is not None:
        # Llama 4 has one shared expert, which no field tells.
        return expert
    width = layer.find_number("moe_shared_expert_intermediate_size") or expert
    return width * (layer.find_number("n_shared_experts") or layer.find_number("num_shared_experts") or 0)


# How far back a layer of this type looks, by the config's name for it. A layer of any other type looks all the way.
_WINDOWS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
# Layers of types that keep neither keys and values nor a state that costs depend on.
_OTHERS = ("mlp", "moe", "conv")


@dataclass(frozen=True, slots=True)
class AttentionLayers:
    """Layers that attend alike.

    `window`: the most tokens that one attends to, itself among them; None for all before it. `pair_products`:
    multiply-adds for a pair of query and key in one layer. A token leaves `kv_heads` times `head_numbers` numbers in
    one layer's cache; with `shares_cache` it leaves none, and a layer reads as many from the cache of one before it.
    """

    layers: int
    window: int | None
    pair_products: int
    kv_heads: int
    head_numbers: int
    shares_cache: bool = False


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
    """Read a text model's config: dense or mixture of experts; grouped, latent, windowed or linear attention, Mamba.

    Chunked attention counts as a window of a chunk, which it has at a chunk's end; gated MLPs are assumed but for
    squared ReLUs. Raises InputError naming the field that is missing, or that cannot be read.
    """
    fields = ConfigFields(config)
    types = read_layer_types(config) or [""] * fields.read_number("num_hidden_layers")
    hidden, layers = fields.read_number("hidden_size"), fields.split(len(types))
    attention, others = _read_attention_layers(layers, types, hidden)
    recurrent = None
    if states := sum(one in RECURRENT for one in types):
        recurrent, parameters = read_recurrent(fields, states, hidden)
        others += parameters
    # Two norms a layer.
    others += len(types) * 2 * hidden + _read_residuals(fields, len(types), hidden)
    active, stored = read_mlps(layers, types, hidden)
    return Geometry(
        hidden=hidden,
        layers=len(types),
        layer_parameters=others + stored,
        active_parameters=others + active,
        attention=attention,
        vocabulary=fields.read_number("vocab_size"),
        recurrent=recurrent,
    )


def read_layer_types(config: Any) -> list[str] | None:
    """Return what each layer is, by the names of transformers; None if all attend alike.

    Raises InputError for a type that costs do not know.
    """
    fields = ConfigFields(config)
    types = fields.find_list("layers_block_type", "layer_types")
    for one in types or ():
        if not isinstance(one, str) or not (is_attention(one) or one in (*RECURRENT, *_OTHERS)):
            raise fields.refuse(f"has layers of an unknown type in its layer_types: {one!r}")
    return types


def is_attention(layer_type: str) -> bool:
    """Tell whether a layer of this type keeps keys and values; "" is that of a model whose layers are all alike."""
    return layer_type in ("", "attention") or (layer_type.endswith("_attention") and layer_type not in RECURRENT)


def _read_window(layer: ConfigFields, layer_type: str) -> int | None:
    """Return the most tokens that a layer attends to; None for all."""
    if layer_type in _WINDOWS:
        return layer.read_number(_WINDOWS[layer_type])
    if layer_type or layer.find("use_sliding_window") is False:
        return None
    return layer.find_number("sliding_window")


def _read_attention_layers(
    layers: list[ConfigFields], types: list[str], hidden: int
) -> tuple[tuple[AttentionLayers, ...], int]:
    """Return the layers that attend, those that do alike together, and the parameters of all of them."""
    alike: Counter[AttentionLayers] = Counter()
    parameters = 0
    for layer, one in zip(layers, types, strict=True):
        if is_attention(one):
            attention, projections = _read_attention(layer, _read_window(layer, one), hidden)
            alike[attention] += 1
            parameters += projections
    return tuple(replace(attention, layers=count) for attention, count in alike.items()), parameters


def _read_attention(layer: ConfigFields, window: int | None, hidden: int) -> tuple[AttentionLayers, int]:
    """Return one layer and its parameters."""
    heads = layer.read_number("num_attention_heads")
    if layer.find("kv_lora_rank") is not None:
        return _read_latent_attention(layer, window, hidden, heads)
    kv_heads = layer.find_number("num_key_value_heads") or heads
    head_dim = layer.find_number("head_dim") or hidden // heads
    shares = shares_cache(layer)
    # Queries and output, keys and values; Qwen3.5 gates the output as well. Gemma-4's values may be its keys: vLLM
    # keeps and computes both all the same.
    matrices = 2 * heads + (0 if shares else 2 * kv_heads) + (heads if layer.find("attn_output_gate") else 0)
    attention = AttentionLayers(1, window, 2 * heads * head_dim, kv_heads, 2 * head_dim, shares)
    return attention, hidden * head_dim * matrices


def _read_latent_attention(
    layer: ConfigFields, window: int | None, hidden: int, heads: int
) -> tuple[AttentionLayers, int]:
    """Count DeepSeek's MLA as a prefill computes it: keys and values of each head made from the latent ones."""
    latent, rotated = layer.read_number("kv_lora_rank"), layer.read_number("qk_rope_head_dim")
    key, value = layer.read_number("qk_nope_head_dim") + rotated, layer.read_number("v_head_dim")
    query_rank = layer.find_number("q_lora_rank")
    queries = query_rank * (hidden + heads * key) if query_rank else hidden * heads * key
    keys_and_values = hidden * (latent + rotated) + latent * heads * (key - rotated + value)
    attention = AttentionLayers(1, window, heads * (key + value), 1, latent + rotated)
    return attention, queries + keys_and_values + heads * value * hidden


def _read_residuals(fields: ConfigFields, layers: int, hidden: int) -> int:
    """Count what Gemma-3n and 4 have beside layers: inputs of a layer's own, residuals of low rank, more streams."""
    per_layer = 3 * hidden * (fields.find_number("hidden_size_per_layer_input") or 0)
    per_layer += 2 * hidden * (fields.find_number("laurel_rank") or 0)
    streams = fields.find_number("altup_num_inputs") or 1
    return layers * per_layer + 2 * (streams - 1) * hidden * hidden
