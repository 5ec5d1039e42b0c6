"""Shapes read from configs as they are published: of a folder, without weights or tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from agentcache.errors import InputError
from agentcache.models.catalog import make_text_model
from agentcache.models.geometry import read_geometry
from agentcache.models.published import find_known, read_shape
from agentcache.models.shapes import SHAPES
from agentcache.policy.presets import count_parameters, estimate_kv_tokens, find_cost_profile, find_step_cost

# As google/gemma-3-4b-it has it: most is the default of its class.
GEMMA = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152},
}
LLAMA = {**SHAPES["llama-3.1-8b"].fields, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}


def publish(folder: Path, config: dict[str, Any] | str) -> str:
    folder.mkdir()
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / "config.json").write_text(text, encoding="utf-8")
    return str(folder)


def test_a_config_of_defaults_and_pictures_gives_its_text_part(tmp_path: Path) -> None:
    model = publish(tmp_path / "gemma", GEMMA)
    shape = read_shape(model)
    assert shape.architecture == "Gemma3ForCausalLM"
    assert count_parameters(shape) == pytest.approx(3.88e9, rel=0.01)
    assert {layers.window for layers in shape.geometry.attention} == {None, 1024}
    made = Path(make_text_model(model))
    assert read_geometry(AutoConfig.from_pretrained(made)) == shape.geometry
    assert (made / "tokenizer.json").is_file()
    assert estimate_kv_tokens(model, "l4") > 50_000


def test_a_model_like_a_measured_one_has_its_costs(tmp_path: Path) -> None:
    model = publish(tmp_path / "tuned", LLAMA)
    assert find_step_cost(model, "h200") == find_step_cost("llama-3.1-8b", "h200")
    assert find_cost_profile(model, "h200").measured
    assert not find_cost_profile(model, "l4").measured


def test_quantized_weights_are_told(tmp_path: Path) -> None:
    quantized = {**LLAMA, "quantization_config": {"quant_method": "fp8"}}
    assert "quantized" in read_shape(publish(tmp_path / "fp8", quantized)).note
    assert "quantization_config" not in read_shape(str(tmp_path / "fp8")).fields


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "its config cannot be read: It looks like the config file"),
        ({"model_type": "kimi_x"}, "its config cannot be read: The checkpoint you are trying to load has model type"),
        ({"model_type": "qwen2_5_vl"}, "transformers has no text model of type qwen2_5_vl_text; give a text model"),
        ({**LLAMA, "num_attention_heads": 0}, "integer modulo by zero"),
    ],
)
def test_a_config_without_a_text_model_is_refused(tmp_path: Path, config: dict[str, Any] | str, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        read_shape(publish(tmp_path / "odd", config))
    assert str(refused.value).startswith(f"model {tmp_path / 'odd'}: ")
    assert "\n" not in str(refused.value)


def test_published_names_stand_for_the_shapes_here() -> None:
    assert find_known("meta-llama/Llama-3.1-8B-Instruct") == "llama-3.1-8b"
    assert find_known("somebody/else") is None
