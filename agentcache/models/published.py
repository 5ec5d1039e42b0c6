"""Reads the shape of any model from its Hugging Face config: a folder, or a name on the hub. Loads no weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from agentcache.errors import InputError, in_one_line
from agentcache.models.config_fields import ConfigFields
from agentcache.models.geometry import Geometry, read_geometry
from agentcache.models.hub import check_hub
from agentcache.models.shapes import SHAPES, Shape

# What `Shape.as_config` gives itself, and what says how weights are stored.
_LEFT_OUT = ("architectures", "model_type", "dtype", "quantization_config", "transformers_version", "auto_map")


@dataclass(frozen=True)
class PublishedShape(Shape):
    """The text part of a published model, with what was `read` of its config. `note` says what costs leave out."""

    read: Geometry | None = None

    @property
    def geometry(self) -> Geometry:
        """Return what decides its speed."""
        assert self.read is not None
        return self.read


def find_known(model: str) -> str | None:
    """Return the shape whose config.json is the one that is published as `model`; None where there is none here."""
    return next((name for name, shape in SHAPES.items() if shape.source == model), None)


def is_published(model: str) -> bool:
    """Tell whether it can be a folder or a name on the hub, OWNER/NAME; where neither, a preset's name is misspelt."""
    return Path(model).is_dir() or "/" in model


@cache
def read_shape(model: str) -> PublishedShape:
    """Read it; transformers take seconds to load.

    Raises InputError as `check_hub`, and for a config that costs cannot be told from.
    """
    check_hub(model)
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as TEXT_MODELS

    try:
        whole = AutoConfig.from_pretrained(model, trust_remote_code=False)
        config = whole.get_text_config()
        geometry = read_geometry(config)
        for name in ("num_attention_heads", "max_position_embeddings"):
            ConfigFields(config).read_number(name)
        quantization = ConfigFields(whole).find("quantization_config")
    # Each kind of broken config has an exception of its own.
    except Exception as error:
        why = in_one_line(error).partition(". ")[0]
        raise InputError(f"model {model}: its config cannot be read: {why:.200}; give another model") from None
    if config.model_type not in TEXT_MODELS:
        raise InputError(
            f"model {model}: transformers has no text model of type {config.model_type}; give a text model of its size"
        )
    return PublishedShape(
        architecture=TEXT_MODELS[config.model_type],
        model_type=config.model_type,
        source=model,
        fields={name: value for name, value in config.to_dict().items() if name not in _LEFT_OUT},
        note="its weights are quantized, and taken to be as large and as fast as in bfloat16" if quantization else "",
        read=geometry,
    )
