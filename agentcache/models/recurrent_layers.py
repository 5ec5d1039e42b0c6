"""Layers that keep a state of a fixed size, read from a model's config: gated delta nets, Mamba and Mamba-2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentcache.models.config_fields import ConfigFields

# What configs call such a layer. Transformers 5 has one name for all kinds.
RECURRENT = ("linear_attention", "mamba")
_TYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class RecurrentLayers:
    """Layers that keep a state in place of keys and values.

    `state_numbers`: of one layer's state; each token decays it, adds to it and reads it. `state_bytes`: of one of these
    numbers; None where they have the model's own type. `convolution_numbers`: the inputs that the convolution in front
    of it looks back on, in the model's own type.
    """

    kind: Literal["delta-net", "mamba", "mamba2"]
    layers: int
    state_numbers: int
    state_bytes: int | None
    convolution_numbers: int


def read_recurrent(fields: ConfigFields, layers: int, hidden: int) -> tuple[RecurrentLayers, int]:
    """Return so many layers that keep a state, and the parameters of all of them."""
    kind: Literal["delta-net", "mamba", "mamba2"]
    if fields.find("linear_num_value_heads") is not None:
        kind, (state, convolved, projections) = "delta-net", _read_delta_net(fields, hidden)
    elif fields.find("mamba_dt_rank") is not None:
        kind, (state, convolved, projections) = "mamba", _read_mamba(fields, hidden)
    else:
        kind, (state, convolved, projections) = "mamba2", _read_mamba2(fields, hidden)
    taps = fields.read_number("linear_conv_kernel_dim", "conv_kernel", "mamba_d_conv")
    recurrent = RecurrentLayers(kind, layers, state, _read_state_bytes(fields), (taps - 1) * convolved)
    return recurrent, layers * (projections + taps * convolved)


def _read_state_bytes(fields: ConfigFields) -> int | None:
    dtype = fields.find("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    if dtype in (None, "auto"):
        return None
    if (name := str(dtype).removeprefix("torch.")) not in _TYPE_BYTES:
        raise fields.refuse(f"has an unknown type as its mamba_ssm_dtype or mamba_ssm_cache_dtype: {name}")
    return _TYPE_BYTES[name]


def _read_delta_net(fields: ConfigFields, hidden: int) -> tuple[int, int, int]:
    """Return the numbers of a gated delta net's state, the width of its convolution, and its projections."""
    heads, key_dim = fields.read_number("linear_num_value_heads"), fields.read_number("linear_key_head_dim")
    keys = fields.read_number("linear_num_key_heads") * key_dim
    values = heads * fields.read_number("linear_value_head_dim")
    # Queries, keys, values and their gate; two gates a head; the output.
    return values * key_dim, 2 * keys + values, hidden * (2 * keys + 2 * values + 2 * heads + values)


def _read_mamba2(fields: ConfigFields, hidden: int) -> tuple[int, int, int]:
    """Return the numbers of a Mamba-2 layer's state, the width of its convolution, and its projections."""
    heads = fields.read_number("mamba_num_heads", "mamba_n_heads")
    state = fields.read_number("ssm_state_size", "mamba_d_state")
    inner = heads * fields.read_number("mamba_head_dim", "mamba_d_head")
    convolved = inner + 2 * fields.read_number("n_groups", "mamba_n_groups") * state
    # The convolution's input, the gate, a step size a head; the output.
    return inner * state, convolved, hidden * (convolved + inner + heads + inner)


def _read_mamba(fields: ConfigFields, hidden: int) -> tuple[int, int, int]:
    """Return the numbers of a Mamba layer's state, the width of its convolution, and its projections."""
    state, rank = fields.read_number("mamba_d_state"), fields.read_number("mamba_dt_rank")
    inner = hidden * fields.read_number("mamba_expand")
    # The convolution's input, the gate, the output; step sizes of low rank, and what goes in and out of the state.
    return inner * state, inner, 3 * hidden * inner + inner * (2 * rank + 2 * state)
