"""The MLPs of a model's layers, dense or of experts, read from its config."""

from __future__ import annotations

from collections.abc import Sequence

from agentcache.models.config_fields import ConfigFields
from agentcache.models.shared_cache import shares_cache

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
