"""A config is read or refused with a line that names the field, whatever it holds."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from sizes import IS_THOROUGH
from transformers import CONFIG_MAPPING, Ernie4_5_VLMoeTextConfig, PretrainedConfig

from agentcache.errors import InputError
from agentcache.models.config_fields import ConfigFields
from agentcache.models.geometry import Geometry, read_geometry

LLAMA: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}
HYBRID: dict[str, Any] = {
    **LLAMA,
    "layer_types": ["mamba", "attention"],
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "n_groups": 1,
    "conv_kernel": 4,
}


READ = {"llama", "gemma4", "gemma3n", "deepseek_v3", "jamba", "nemotron_h"}
NOT_READ = "ernie4_5_vl_moe"


def make_known_configs() -> Iterator[tuple[str, Any]]:
    """The text models' configs of all in transformers that can be made without arguments."""
    for kind in CONFIG_MAPPING if IS_THOROUGH else [*list(CONFIG_MAPPING)[::6], *READ, NOT_READ]:
        # The first are made of what is on the network, the last is GPT-2's and loads PyTorch.
        if kind in ("edgetam", "edgetam_vision_model", "gpt-sw3"):
            continue
        try:
            config = CONFIG_MAPPING[kind]()
        except Exception:
            # Some need arguments, others libraries.
            continue
        yield kind, config.get_text_config()


def test_every_known_config_is_read_or_refused() -> None:
    read = {}
    for kind, config in make_known_configs():
        try:
            read[kind] = read_geometry(config)
        except InputError as error:
            line = str(error)
            assert line.startswith(f"the model's config ({type(config).__name__}) "), kind
            assert "\n" not in line, kind
    assert all(isinstance(geometry, Geometry) for geometry in read.values())
    assert set(read) >= READ
    assert NOT_READ not in read


class Refusing(SimpleNamespace):
    """As remote code may be."""

    @property
    def head_dim(self) -> int:
        raise RuntimeError("not\nhere")


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (Ernie4_5_VLMoeTextConfig(), "no whole number as its moe_intermediate_size or intermediate_size, but [1536, 5"),
        (SimpleNamespace(**{**LLAMA, "num_hidden_layers": "many"}), "no whole number as its num_hidden_layers, but 'm"),
        (SimpleNamespace(**{**LLAMA, "num_attention_heads": 0}), "no num_attention_heads above 0"),
        (SimpleNamespace(**{**LLAMA, "vocab_size": float("nan")}), "no whole number as its vocab_size, but nan"),
        (SimpleNamespace(**{**LLAMA, "layer_types": 2}), "no list as its layer_types, but 2"),
        (SimpleNamespace(**{**LLAMA, "layer_types": ["hybrid"]}), "layers of an unknown type in its layer_types: 'hyb"),
        (SimpleNamespace(**{**HYBRID, "mamba_ssm_dtype": "float8"}), "an unknown type as its mamba_ssm_dtype or mamba"),
        (Refusing(**LLAMA), "cannot tell its head_dim (RuntimeError)"),
        (PretrainedConfig(), "has no num_hidden_layers"),
    ],
)
def test_what_cannot_be_read_is_named(config: Any, complaint: str) -> None:
    with pytest.raises(InputError) as caught:
        read_geometry(config)
    assert complaint in str(caught.value)


def test_a_layers_own_number_is_read_from_a_list() -> None:
    layers = ConfigFields(SimpleNamespace(widths=[8, 16], both=4)).split(2)
    assert [layer.read_number("widths") for layer in layers] == [8, 16]
    assert [layer.read_number("missing", "both") for layer in layers] == [4, 4]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [({}, None), ({"mamba_ssm_dtype": "float32"}, 4), ({"mamba_ssm_cache_dtype": "bfloat16"}, 2)],
)
def test_a_state_has_the_type_that_the_config_names(dtype: dict[str, str], expected: int | None) -> None:
    recurrent = read_geometry(SimpleNamespace(**HYBRID, **dtype)).recurrent
    assert recurrent is not None
    assert recurrent.state_bytes == expected
    assert recurrent.state_numbers == 4 * 32 * 16
